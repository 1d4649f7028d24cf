// Several processes, each with a part of the batch, train like one process with the whole batch.
#include <dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compat/torch_version.h"
#include "dist/parallel_net.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace {

using namespace parallel_net;  // NOLINT: the subject of this file

constexpr int64_t kSteps = 10;

struct Place {
  int64_t step = 0;
  int64_t rank = 0;
  double scale = 1;  // of the loss
};

struct Case {
  const char* name = "";
  std::set<std::string> parts = {"in", "out"};
  DataParallelOptions options = {};
  // One step of one rank, including its backward calls.
  std::function<void(Net&, const Call&, const Place&)> run = {};
  std::function<void(Net&)> change = {};  // changes the model before it is prepared
};

at::Tensor loss_of(const at::Tensor& output, const Place& place) {
  return output.pow(2).mean() * place.scale;
}

void run_plain(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  loss_of(call(true, [&] { return Tensors{net.out(net.hidden(x))}; })[0], place).backward();
}

void run_accumulating(Net& net, const Call& call, const Place& place) {
  const auto parts = batch_of(place.step, place.rank).chunk(3);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto output =
        call(i + 1 == parts.size(), [&] { return Tensors{net.out(net.hidden(parts[i]))}; });
    loss_of(output[0], place).backward();
  }
}

// Ranks and steps use different outputs. In every third step the loss ignores one of two outputs.
void run_with_unused(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  const bool first = (place.step + place.rank) % 2 == 0;
  const auto outputs = call(true, [&]() -> Tensors {
    const auto hidden = net.hidden(x);
    if (place.step % 3 == 0) return {net.out(hidden), net.other_out(hidden)};
    return {first ? net.out(hidden) : net.other_out(hidden)};
  });
  loss_of(outputs[0], place).backward();
}

void run_with_same_unused(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  const auto outputs = call(true, [&]() -> Tensors {
    const auto hidden = net.hidden(x);
    return {net.out(hidden), hidden};
  });
  loss_of(outputs[0], place).backward();
}

void run_sharing(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  const auto outputs = call(true, [&]() -> Tensors {
    auto hidden = net.hidden(x);
    for (int i = 0; i < 3; ++i) hidden = torch::tanh(net.inner(hidden));
    return {net.out(hidden)};
  });
  loss_of(outputs[0], place).backward();
}

at::Tensor words_of(const Place& place) {
  return batch_of(place.step, place.rank).mul(7).abs().to(at::kLong).clamp(0, 19);
}

void run_sparse(Net& net, const Call& call, const Place& place) {
  const auto words = words_of(place);
  loss_of(call(true, [&] { return Tensors{net.out(net.words(words).mean(1))}; })[0], place)
      .backward();
}

void run_two_forwards(Net& net, const Call& call, const Place& place) {
  const auto parts = batch_of(place.step, place.rank).chunk(2);
  const auto forward = [&](const at::Tensor& x) {
    return call(true, [&] { return Tensors{net.out(net.hidden(x))}; })[0];
  };
  const auto first = forward(parts[0]);
  const auto second = forward(parts[1]);
  (loss_of(first, place) + loss_of(second, place)).backward();
}

// Python's DDP averages only the first of these two, so the models drift apart.
void run_two_backwards(Net& net, const Call& call, const Place& place) {
  const auto parts = batch_of(place.step, place.rank).chunk(2);
  const auto forward = [&](const at::Tensor& x) {
    return call(true, [&] { return Tensors{net.out(net.hidden(x))}; })[0];
  };
  const auto first = forward(parts[0]);
  const auto second = forward(parts[1]);
  loss_of(first, place).backward();
  loss_of(second, place).backward();
}

void run_two_heads(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  const auto outputs = call(true, [&] { return Tensors{net.in(x), net.words(words_of(place))}; });
  loss_of(outputs[0], place).backward();
  loss_of(outputs[1], place).backward();
}

void run_with_buffers(Net& net, const Call& call, const Place& place) {
  const auto x = batch_of(place.step, place.rank);
  loss_of(call(true, [&] { return Tensors{net.out(net.norm(net.hidden(x)))}; })[0], place)
      .backward();
}

void share_weights(Net& net) {
  net.inner->weight = net.inner->register_parameter("also", net.inner->weight);
}

std::vector<Case> cases_of_batched_copies() {
  if (!ACCELERANT_TORCH_AT_LEAST(2, 12)) return {};
  return {
      {"plain", {"in", "out"}, {.batched_grad_copy = true}, run_plain},
      {"tiny buckets",
       {"in", "out"},
       {.batched_grad_copy = true, .bucket_cap_mb = 0.0001},
       run_plain},
      {"accumulating", {"in", "out"}, {.batched_grad_copy = true}, run_accumulating},
      {"accumulating into views",
       {"in", "out"},
       {.gradient_as_bucket_view = true, .batched_grad_copy = true},
       run_accumulating},
      {"accumulating in a static graph",
       {"in", "out"},
       {.static_graph = true, .batched_grad_copy = true},
       run_accumulating},
      {"unused",
       {"in", "out", "other_out"},
       {.find_unused_parameters = true, .batched_grad_copy = true},
       run_with_unused},
      {"unused with views",
       {"in", "out", "other_out"},
       {.find_unused_parameters = true, .gradient_as_bucket_view = true, .batched_grad_copy = true},
       run_with_unused},
      {"sparse", {"words", "out"}, {.batched_grad_copy = true}, run_sparse},
      {"two backwards", {"in", "out"}, {.batched_grad_copy = true}, run_two_backwards},
  };
}

std::vector<Case> cases() {
  const std::set<std::string> heads = {"in", "out", "other_out"};
  return {
      {"plain", {"in", "out"}, {}, run_plain},
      {"tiny buckets", {"in", "out"}, {.bucket_cap_mb = 0.0001}, run_plain},
      {"accumulating", {"in", "out"}, {}, run_accumulating},
      {"accumulating into views",
       {"in", "out"},
       {.gradient_as_bucket_view = true},
       run_accumulating},
      {"accumulating in a static graph", {"in", "out"}, {.static_graph = true}, run_accumulating},
      {"unused", heads, {.find_unused_parameters = true}, run_with_unused},
      {"unused with views",
       heads,
       {.find_unused_parameters = true, .gradient_as_bucket_view = true},
       run_with_unused},
      {"static graph", {"in", "out"}, {.static_graph = true}, run_plain},
      {"static graph with unused", heads, {.static_graph = true}, run_with_same_unused},
      {"unused in a static graph",
       heads,
       {.find_unused_parameters = true, .static_graph = true},
       run_with_same_unused},
      {"views", {"in", "out"}, {.gradient_as_bucket_view = true}, run_plain},
      {"shared", {"in", "inner", "out"}, {}, run_sharing, share_weights},
      {"shared in a static graph",
       {"in", "inner", "out"},
       {.static_graph = true},
       run_sharing,
       share_weights},
      {"frozen",
       {"in", "out"},
       {},
       run_plain,
       [](Net& net) { net.in->weight.requires_grad_(false); }},
      {"sparse", {"words", "out"}, {}, run_sparse},
      {"two forwards", {"in", "out"}, {}, run_two_forwards},
      {"two forwards in a static graph", {"in", "out"}, {.static_graph = true}, run_two_forwards},
      {"two forwards, unused", heads, {.find_unused_parameters = true}, run_two_forwards},
      {"two backwards", {"in", "out"}, {}, run_two_backwards},
      {"two backwards with views",
       {"in", "out"},
       {.gradient_as_bucket_view = true},
       run_two_backwards},
      {"two heads", {"in", "words"}, {}, run_two_heads},
      {"buffers", {"in", "norm", "out"}, {}, run_with_buffers},
  };
}

std::shared_ptr<Net> make_net(const Case& test) {
  auto net = std::make_shared<Net>(test.parts);
  if (test.change) test.change(*net);
  return net;
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

// One process does the work of all ranks. The buffers are those that rank 0 would leave.
std::shared_ptr<Net> train_alone(const Case& test) {
  auto net = make_net(test);
  for (int64_t step = 0; step < kSteps; ++step) {
    Tensors of_rank_0;
    for (int64_t r = 0; r < num_ranks(); ++r) {
      test.run(*net, plain_call(), {step, r, 1.0 / num_ranks()});
      if (r == 0) of_rank_0 = copies_of(net->buffers());
    }
    const torch::NoGradGuard no_grad;
    auto buffers = net->buffers();
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(of_rank_0[i]);
    step_and_clear(*net);
  }
  return net;
}

void expect_equal_training(const std::shared_ptr<World>& world, const Case& test) {
  SCOPED_TRACE(test.name);
  const auto alone = train_alone(test);
  auto net = make_net(test);
  // The model of rank 0 must reach the others.
  if (rank() != 0) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.add_(1);
  }
  auto parallel = parallel_of(world, net, test.options);
  const auto call = call_of(*parallel);
  for (int64_t step = 0; step < kSteps; ++step) {
    test.run(*net, call, {step, rank(), 1});
    parallel->require_reduced();
    step_and_clear(*net);
  }
  call(false, [&] { return Tensors{}; });  // takes the buffers of rank 0 too
  expect_close(net->parameters(), alone->parameters());
  expect_close(net->buffers(), alone->buffers());
  expect_same_on_all_ranks(*world, net->parameters());
  expect_same_on_all_ranks(*world, net->buffers());
}

RANK_TEST(DataParallel, TrainsAsOneProcess, 2) {
  const auto world = join_world();
  for (const Case& test : cases()) expect_equal_training(world, test);
}

RANK_TEST(DataParallel, TrainsAsOneProcessWithThree, 3) {
  const auto world = join_world();
  for (const Case& test : cases()) expect_equal_training(world, test);
}

RANK_TEST(DataParallel, CopiesGradientsAllAtOnce, 2) {
  const auto world = join_world();
  for (const Case& test : cases_of_batched_copies()) expect_equal_training(world, test);
}

RANK_TEST(DataParallel, ASecondBackwardIsRefusedWhereItCannotBeReduced, 2) {
  const auto world = join_world();
  for (const DataParallelOptions& options : {DataParallelOptions{.find_unused_parameters = true},
                                             DataParallelOptions{.static_graph = true}}) {
    auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
    auto parallel = parallel_of(world, net, options);
    const auto call = call_of(*parallel);
    EXPECT_TRUE(contains(error_of([&] {
                           run_two_backwards(*net, call, {0, rank()});
                         }),
                         "second backward()"));
  }
}

}  // namespace
