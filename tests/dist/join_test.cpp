// Training with different numbers of batches.
#include "dist/join.h"

#include <accelerant/dist/collectives.h>
#include <accelerant/dist/local_sgd.h>
#include <accelerant/dist/process_control.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "compat/torch_version.h"
#include "dist/parallel_net.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace {

using namespace parallel_net;  // NOLINT: the subject of this file
using accelerant::dist::join_uneven;
using accelerant::dist::JoinOptions;
namespace dist = accelerant::dist;

struct UnevenCase {
  const char* name = "";
  std::vector<int64_t> batches = {};  // for each rank
  DataParallelOptions options = {};
  JoinOptions join = {};
  int64_t accumulates = 1;  // forwards per synchronised one
  bool has_buffers = false;
  bool has_unused = false;
};

std::set<std::string> uneven_parts_of(const UnevenCase& test) {
  std::set<std::string> parts = {"in", "out"};
  if (test.has_buffers) parts.insert("norm");
  if (test.has_unused) parts.insert("other_out");
  return parts;
}

bool synchronises(const UnevenCase& test, int64_t step) {
  return (step + 1) % test.accumulates == 0;
}

at::Tensor output_of(const UnevenCase& test, Net& net, int64_t step, int64_t of_rank) {
  auto hidden = net.hidden(batch_of(step, of_rank));
  if (test.has_buffers) hidden = net.norm(hidden);
  return test.has_unused && step % 2 == 1 ? net.other_out(hidden) : net.out(hidden);
}

// Follows the documentation of PyTorch's join: processes that have ended contribute gradients of
// zero.
std::shared_ptr<Net> train_uneven_alone(const UnevenCase& test) {
  auto net = std::make_shared<Net>(uneven_parts_of(test));
  const int64_t most = *std::max_element(test.batches.begin(), test.batches.end());
  for (int64_t step = 0; step < most; ++step) {
    Tensors of_source;
    int64_t active = 0;
    for (const int64_t count : test.batches) active += step < count ? 1 : 0;
    const double divisor = test.join.divide_by_initial_world_size ? static_cast<double>(num_ranks())
                                                                  : static_cast<double>(active);
    const Tensors before = [&] {
      Tensors copies;
      for (const auto& buffer : net->buffers()) copies.push_back(buffer.clone());
      return copies;
    }();
    const auto restore = [&](const Tensors& values) {
      const torch::NoGradGuard no_grad;
      auto buffers = net->buffers();
      for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
    };
    for (int64_t r = 0; r < num_ranks(); ++r) {
      if (step >= test.batches[static_cast<size_t>(r)]) continue;
      restore(before);
      (output_of(test, *net, step, r).pow(2).mean() / divisor).backward();
      of_source.clear();
      for (const auto& buffer : net->buffers()) of_source.push_back(buffer.clone());
    }
    restore(of_source);  // the buffers of the highest rank that is left
    if (synchronises(test, step)) step_and_clear(*net);
  }
  return net;
}

void expect_equal_uneven_training(const std::shared_ptr<World>& world, const UnevenCase& test) {
  SCOPED_TRACE(test.name);
  const auto alone = train_uneven_alone(test);
  auto net = std::make_shared<Net>(uneven_parts_of(test));
  auto parallel = parallel_of(world, net, test.options);
  const auto call = call_of(*parallel);
  join_uneven({parallel.get()}, test.join, [&] {
    for (int64_t step = 0; step < test.batches[static_cast<size_t>(rank())]; ++step) {
      const bool synchronise = synchronises(test, step);
      call(synchronise, [&] { return Tensors{output_of(test, *net, step, rank())}; })[0]
          .pow(2)
          .mean()
          .backward();
      if (synchronise) step_and_clear(*net);
      // An evaluation in between, in which the others take no part.
      const torch::NoGradGuard no_grad;
      net->eval();
      call(true, [&] { return Tensors{output_of(test, *net, step, rank())}; });
      net->train();
    }
  });
  expect_close(net->parameters(), alone->parameters());
  if (test.has_buffers) expect_close({net->buffers()[2]}, {alone->buffers()[2]}, 0);
  expect_same_on_all_ranks(*world, net->parameters());
  expect_same_on_all_ranks(*world, net->buffers());

  // An even epoch works afterwards.
  for (int64_t step = 0; step < 2; ++step) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    call(true, [&] { return Tensors{output_of(test, *net, step, rank())}; })[0]
        .pow(2)
        .mean()
        .backward();
    step_and_clear(*net);
  }
  expect_same_on_all_ranks(*world, net->parameters());
}

RANK_TEST(Join, TrainsAsTheSumOfWhatThereIs, 3) {
  const auto world = join_world();
  for (const UnevenCase& test : std::vector<UnevenCase>{
           {"even", {3, 3, 3}},
           {"uneven", {2, 6, 4}},
           {"the first rank goes on", {7, 1, 3}},
           {"none at first", {5, 0, 5}},
           {"none on rank 0", {0, 3, 4}},
           {"divided by those left", {2, 6, 4}, {}, {.divide_by_initial_world_size = false}},
           {"views", {2, 6, 4}, {.gradient_as_bucket_view = true}},
           {"small buckets", {1, 6, 4}, {.bucket_cap_mb = 0.0001}},
           {"accumulating", {2, 6, 4}, {}, {}, 2},
           {"static graph", {2, 6, 4}, {.static_graph = true}},
           {"static graph that one rank leaves early", {1, 6, 4}, {.static_graph = true}},
           {"unused", {2, 7, 4}, {.find_unused_parameters = true}, {}, 1, false, true},
           {"batched copies", {2, 6, 4}, {.batched_grad_copy = ACCELERANT_TORCH_AT_LEAST(2, 12)}},
       }) {
    expect_equal_uneven_training(world, test);
  }
}

// Each process normalises its own batch; the counter shows whose buffers were kept.
RANK_TEST(Join, BuffersComeFromARankThatGoesOn, 2) {
  const auto world = join_world();
  expect_equal_uneven_training(world, {.name = "buffers", .batches = {2, 5}, .has_buffers = true});
  expect_equal_uneven_training(world,
                               {.name = "of rank 0", .batches = {5, 2}, .has_buffers = true});
}

// Both models run forward before either backward. The second one asks for its synchronisation again
// just before its backward.
RANK_TEST(Join, TwoModels, 2) {
  const auto world = join_world();
  auto first = std::make_shared<Net>(std::set<std::string>{"in", "inner"});
  auto second = std::make_shared<Net>(std::set<std::string>{"inner", "out"});
  auto parallel_first = parallel_of(world, first);
  auto parallel_second = parallel_of(world, second, {.gradient_as_bucket_view = true});
  const auto call_first = call_of(*parallel_first);
  const auto call_second = call_of(*parallel_second);
  join_uneven({parallel_first.get(), parallel_second.get()}, {}, [&] {
    for (int64_t step = 0; step < 2 + 3 * rank(); ++step) {
      const auto middle = call_first(
          true, [&] { return Tensors{first->inner(first->hidden(batch_of(step, rank())))}; })[0];
      const auto made = call_second(
          true, [&] { return Tensors{second->out(second->inner(middle.detach()))}; })[0];
      middle.mean().backward();
      step_and_clear(*first);
      parallel_second->synchronise_next_backward();
      made.mean().backward();
      step_and_clear(*second);
    }
  });
  expect_same_on_all_ranks(*world, first->parameters());
  expect_same_on_all_ranks(*world, second->parameters());
}

RANK_TEST(Join, EndsEarlyIfAsked, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  int64_t steps = 0;
  const auto error = error_of([&] {
    join_uneven({parallel.get()}, {.throw_on_early_termination = true}, [&] {
      for (; steps < 2 + 2 * rank(); ++steps) {
        call(true, [&] { return Tensors{net->out(net->hidden(batch_of(steps, rank())))}; })[0]
            .mean()
            .backward();
        step_and_clear(*net);
      }
    });
  });
  EXPECT_EQ(steps, 2);
  EXPECT_TRUE(contains(
      error, rank() == 0 ? "Rank 0 has no more inputs" : "Another process has no more inputs"));
  expect_same_on_all_ranks(*world, net->parameters());
}

RANK_TEST(Join, RefusesNonsense, 2) {
  const auto world = join_world();
  EXPECT_TRUE(contains(error_of([&] { join_uneven({}, {}, [] {}); }), "got no models"));
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  join_uneven({parallel.get()}, {}, [&] {
    EXPECT_TRUE(
        contains(error_of([&] { join_uneven({parallel.get()}, {}, [] {}); }), "inside another"));
  });
  expect_same_on_all_ranks(*world, net->parameters());
}

// The error comes at once, before anything is exchanged, so the training can go on. It comes even
// if all processes still have inputs.
RANK_TEST(Join, RefusesOtherExchanges, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "norm", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  auto other = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel_other = parallel_of(world, other);
  const at::Tensor one = torch::ones({1});
  nlohmann::json object = 1;
  const std::vector<std::pair<std::string, std::function<void()>>> others = {
      {"gather", [&] { dist::gather(*world, one); }},
      {"gather_for_metrics", [&] { dist::gather_for_metrics(*world, {}, one); }},
      {"pad_across_processes", [&] { dist::pad_across_processes(*world, one); }},
      {"reduce", [&] { dist::reduce(*world, one); }},
      {"all_reduce_", [&] { dist::all_reduce_(*world, one); }},
      {"broadcast", [&] { dist::broadcast(*world, one); }},
      {"wait_for_everyone", [&] { dist::wait_for_everyone(*world); }},
      {"gather_object", [&] { dist::gather_object(*world, object); }},
      {"broadcast_object", [&] { dist::broadcast_object(*world, object); }},
      {"main_process_first", [&] { dist::main_process_first(*world, [] {}); }},
      {"averaging parameters", [&] { dist::average_parameters(*world, net->parameters()); }},
      {"comparing the models", [&] { parallel_of(world, other); }},
  };
  const auto train = [&](Net& trained, const Call& calls, int64_t step) {
    calls(true, [&] { return Tensors{trained.out(trained.hidden(batch_of(step, rank())))}; })[0]
        .mean()
        .backward();
    step_and_clear(trained);
  };
  const auto call_other = call_of(*parallel_other);
  join_uneven({parallel.get()}, {}, [&] {
    for (int64_t step = 0; step < 2 + 2 * rank(); ++step) {
      for (const auto& [name, exchange] : others) {
        const std::string error = error_of(exchange);
        EXPECT_TRUE(contains(error, "join_uneven_inputs(): " + name)) << error;
        EXPECT_TRUE(contains(error, "after join_uneven_inputs()")) << error;
      }
      EXPECT_TRUE(
          contains(error_of([&] { train(*other, call_other, step); }), "does not cover a model"));
      EXPECT_TRUE(contains(error_of([&] { parallel_other->synchronise_next_backward(); }),
                           "does not cover a model"));
      call(true,
           [&] { return Tensors{net->out(net->norm(net->hidden(batch_of(step, rank()))))}; })[0]
          .mean()
          .backward();
      step_and_clear(*net);
    }
  });
  expect_same_on_all_ranks(*world, net->parameters());
  expect_same_on_all_ranks(*world, net->buffers());
  for (const auto& [name, exchange] : others) exchange();
  train(*other, call_other, 0);
  expect_same_on_all_ranks(*world, other->parameters());
}

// The others notice it at once, like any other failure.
RANK_TEST(Join, AnExchangeInOneProcessEndsAll, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  const std::string error = error_of([&] {
    join_uneven({parallel.get()}, {}, [&] {
      for (int64_t step = 0; step < 1 + rank(); ++step) {
        call(true, [&] { return Tensors{net->out(net->hidden(batch_of(step, rank())))}; })[0]
            .mean()
            .backward();
      }
      // Rank 0 has run out of inputs by now and follows rank 1.
      if (rank() == 1) dist::gather(*world, torch::ones({1}));
    });
  });
  if (rank() == 1) {
    EXPECT_TRUE(contains(error, "join_uneven_inputs(): gather")) << error;
    world->close();
  } else {
    EXPECT_TRUE(contains(error, "lost its connection")) << error;
  }
}

}  // namespace
