// What each step exchanges, and steps other than one forward and one backward.
#include <dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dist/parallel_net.h"
#include "dist/world_access.h"
#include "support/count_exchanges.h"
#include "support/ranks.h"
#include "watch/progress.h"

namespace {

using namespace parallel_net;  // NOLINT: the subject of this file

RANK_TEST(DataParallelSteps, NoGradientsAreSentWithoutSynchronisation, 2) {
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
  step(3, false);  // exchanges the buffers of the previous step
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
    EXPECT_EQ(counted.calls_of(), 0);
  }
  step(7, false);  // exchanges the buffers of step 5
  EXPECT_EQ(counted.bytes_of(), buffers);
}

// One process evaluates in the middle of training while the others go on. In training mode this
// even changes its buffers.
RANK_TEST(DataParallelSteps, OneProcessMayEvaluateAlone, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "norm", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  const auto forward = [&](int64_t step) {
    return call(
        true, [&] { return Tensors{net->out(net->norm(net->hidden(batch_of(step, rank()))))}; })[0];
  };
  CountExchanges counted;
  for (int64_t step = 0; step < 6; ++step) {
    forward(step).pow(2).mean().backward();
    step_and_clear(*net);
    if (step % 2 != rank()) continue;
    counted.reset();
    const torch::NoGradGuard no_grad;
    net->train(step >= 4);
    forward(100 + step);
    {
      const c10::InferenceMode inference;
      forward(200 + step);
    }
    net->train();
    EXPECT_EQ(counted.calls_of(), 0);
  }
  forward(6).pow(2).mean().backward();
  expect_same_on_all_ranks(*world, net->parameters());
  // Each rank's forward has started from the buffers of rank 0: only its own batch differs.
  const auto num_batches = net->norm->num_batches_tracked.item<int64_t>();
  EXPECT_EQ(num_batches, 7 + 2);
  call(false, [&] { return Tensors{}; });
  expect_same_on_all_ranks(*world, net->buffers());
}

RANK_TEST(DataParallelSteps, ASecondBackwardHasTheNameOfItsExchange, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  const auto call = call_of(*parallel);
  const auto output =
      call(true, [&] { return Tensors{net->out(net->hidden(batch_of(0, rank())))}; })[0];
  output.sum().backward({}, /*retain_graph=*/true);
  const int64_t before = accelerant::dist::WorldAccess::progress(*world).snapshot().number;
  std::string during;
  net->in->weight.register_hook([&](const at::Tensor&) {
    during = accelerant::dist::WorldAccess::progress(*world).snapshot().operation;
  });
  output.pow(2).sum().backward();
  EXPECT_EQ(during, "averaging gradients");
  const auto after = accelerant::dist::WorldAccess::progress(*world).snapshot();
  EXPECT_EQ(after.operation, "");
  EXPECT_EQ(after.number, before + 1);
  EXPECT_EQ(after.recent.back(), "averaging gradients");
  EXPECT_TRUE(after.ordered);
  expect_same_on_all_ranks(*world, {net->in->weight.grad()});
}

RANK_TEST(DataParallelSteps, BuffersOfAllTypesAreThoseOfRank0, 2) {
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
  // DataParallel asks for the buffers each time, since users may replace them.
  Tensors buffers = fill(1 + rank());
  DataParallel parallel(world, named_parameters_of(*net), [&] { return buffers; });
  const auto call = call_of(parallel);
  for (int round = 0; round < 2; ++round) {
    buffers = fill(2 * rank());
    call(true, [&] { return Tensors{net->out(net->hidden(batch_of(0, rank())))}; })[0]
        .mean()
        .backward();
    expect_close(buffers, fill(0), 0);
    EXPECT_FALSE(buffers[2].any().item<bool>());
  }
  expect_same_on_all_ranks(*world, net->parameters());
}

// An earlier forward whose backward has not run yet may have saved the buffer.
RANK_TEST(DataParallelSteps, GivingBuffersOnDoesNotBreakABackwardBefore, 2) {
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

RANK_TEST(DataParallelSteps, SynchronisesAfterwards, 2) {
  const auto world = join_world();
  for (const DataParallelOptions& options :
       {DataParallelOptions{}, DataParallelOptions{.gradient_as_bucket_view = true},
        DataParallelOptions{.static_graph = true}}) {
    auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
    auto parallel = parallel_of(world, net, options);
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

// A generator and a discriminator; one is frozen while the other learns.
RANK_TEST(DataParallelSteps, TwoModelsInTurn, 2) {
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
  for (int64_t step = 0; step < 10; ++step) {
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
