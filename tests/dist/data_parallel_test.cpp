// Several processes with a part of the batch each train as one with all of it.
#include <accelerant/dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dist/parallel_net.h"
#include "support/count_exchanges.h"
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
  // One step of one rank, with its backwards.
  std::function<void(Net&, const Call&, const Place&)> run = {};
  std::function<void(Net&)> change = {};  // the model before it is prepared
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

// Ranks and steps use different outputs; in every third step the loss leaves out one that was made.
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

// Python's DDP averages only the first of these two, and the models drift apart.
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

// One process does the work of all ranks. Buffers are those that rank 0 leaves.
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
  {
    // An evaluation takes the buffers of rank 0 too.
    const torch::NoGradGuard no_grad;
    call(true, [&] { return Tensors{}; });
  }
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
                         "A second backward() after forwards that synchronise"));
  }
}

RANK_TEST(DataParallel, NoGradientsAreSentWithoutSynchronisation, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "norm", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  const auto step = [&](int64_t number, bool synchronise) {
    const auto x = batch_of(number, rank());
    call(synchronise, [&] { return Tensors{net->out(net->norm(net->hidden(x)))}; })[0]
        .mean()
        .backward();
  };
  int64_t gradients = 0;
  for (const auto& parameter : net->parameters())
    gradients += static_cast<int64_t>(parameter.nbytes());
  int64_t buffers = 0;
  for (const auto& buffer : net->buffers()) buffers += static_cast<int64_t>(buffer.nbytes());

  step(0, true);
  step(1, true);  // agrees on the order of gradients
  CountExchanges counted;
  step(2, true);
  EXPECT_EQ(counted.calls_of("allreduce_"), 1);
  EXPECT_EQ(counted.bytes_of("allreduce_"), gradients);
  EXPECT_EQ(counted.bytes_of("broadcast_"), buffers);
  EXPECT_EQ(counted.bytes_of(), gradients + buffers);

  counted.reset();
  step(3, false);  // the buffers of the step before
  EXPECT_EQ(counted.bytes_of(), buffers);
  counted.reset();
  step(4, false);
  EXPECT_EQ(counted.calls_of(), 0);
  step(5, true);
  EXPECT_EQ(counted.bytes_of(), gradients);

  counted.reset();
  {
    const torch::NoGradGuard no_grad;
    call(true, [&] { return Tensors{net->out(net->norm(net->hidden(batch_of(6, 0))))}; });
    EXPECT_EQ(counted.bytes_of(), buffers);
    call(true, [&] { return Tensors{net->out(net->norm(net->hidden(batch_of(7, 0))))}; });
    EXPECT_EQ(counted.bytes_of(), buffers);
  }
}

RANK_TEST(DataParallel, BuffersOfAllTypesAreThoseOfRank0, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  const auto fill = [&](int64_t value) {
    Tensors filled;
    for (const auto type :
         {at::kFloat, at::kHalf, at::kBool, at::kLong, at::kShort, at::kComplexFloat}) {
      filled.push_back(torch::full({3}, value, at::kLong).to(type));
    }
    filled.push_back(torch::full({}, value, at::kShort));
    filled.push_back(torch::zeros({0}));
    filled.push_back(torch::full({4, 2}, value).t());
    return filled;
  };
  // Buffers are asked for anew each time, since users replace them.
  Tensors buffers = fill(1 + rank());
  DataParallel parallel(world, named_parameters_of(*net), [&] { return buffers; });
  const auto call = call_of(parallel);
  for (int round = 0; round < 2; ++round) {
    buffers = fill(2 * rank());
    run_plain(*net, call, {0, rank()});
    expect_close(buffers, fill(0), 0);
    EXPECT_FALSE(buffers[2].any().item<bool>());
  }
  expect_same_on_all_ranks(*world, net->parameters());
}

// A forward before, whose backward has not run, may have saved the buffer.
RANK_TEST(DataParallel, GivingBuffersOnDoesNotBreakABackwardBefore, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  at::Tensor factor = torch::full({2}, 3.0);
  DataParallel parallel(world, named_parameters_of(*net), [&] { return Tensors{factor}; });
  const auto call = call_of(parallel);
  const auto forward = [&](int64_t step) {
    return call(true,
                [&] { return Tensors{net->out(net->hidden(batch_of(step, rank()))) * factor}; })[0];
  };
  const auto first = forward(0);
  const auto second = forward(1);
  (first.mean() + second.mean()).backward();
  step_and_clear(*net);
  expect_same_on_all_ranks(*world, net->parameters());
}

RANK_TEST(DataParallel, SynchronisesAfterwards, 2) {
  const auto world = join_world();
  for (const bool views : {false, true}) {
    auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
    auto parallel = parallel_of(world, net, {.gradient_as_bucket_view = views});
    const auto call = call_of(*parallel);
    for (int64_t step = 0; step < 4; ++step) {
      Tensors losses;
      for (int64_t i = 0; i < 2; ++i) {
        const auto x = batch_of(2 * step + i, rank());
        losses.push_back(
            call(false, [&] { return Tensors{net->out(net->hidden(x))}; })[0].pow(2).mean());
      }
      losses[0].backward();
      parallel->synchronise_next_backward();
      losses[1].backward();
      parallel->require_reduced();
      step_and_clear(*net);
      expect_same_on_all_ranks(*world, net->parameters());
    }
  }
}

// A generator and a discriminator, one of them frozen while the other learns.
RANK_TEST(DataParallel, TwoModelsInTurn, 2) {
  const auto world = join_world();
  auto maker = std::make_shared<Net>(std::set<std::string>{"in", "inner"});
  auto judge = std::make_shared<Net>(std::set<std::string>{"inner", "out"});
  auto parallel_maker = parallel_of(world, maker);
  auto parallel_judge = parallel_of(world, judge);
  const auto call_maker = call_of(*parallel_maker);
  const auto call_judge = call_of(*parallel_judge);
  const auto judged = [&](const at::Tensor& x) {
    return call_judge(true, [&] { return Tensors{judge->out(torch::tanh(judge->inner(x)))}; })[0];
  };
  const auto freeze_judge = [&](bool frozen) {
    for (auto& parameter : judge->parameters()) parameter.requires_grad_(!frozen);
  };
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto made = call_maker(
        true, [&] { return Tensors{maker->inner(maker->hidden(batch_of(step, rank())))}; })[0];
    judged(made.detach()).pow(2).mean().backward();
    judged(torch::ones({2, 8}) * rank()).mean().backward();
    parallel_judge->require_reduced();
    step_and_clear(*judge);
    freeze_judge(step % 2 == 0);
    judged(made).mean().backward();
    freeze_judge(false);
    parallel_maker->require_reduced();
    step_and_clear(*maker);
    step_and_clear(*judge);
  }
  expect_same_on_all_ranks(*world, maker->parameters());
  expect_same_on_all_ranks(*world, judge->parameters());
}

}  // namespace
