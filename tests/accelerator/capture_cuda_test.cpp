// capture() with CUDA graphs.
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "accelerator/captured_training.h"
#include "support/expect_error.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::Precision;

class CaptureOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  static CaptureSetup with_steps(int64_t steps, Precision precision = Precision::no) {
    return {.options = {.mixed_precision = precision, .gradient_accumulation = {.steps = steps}}};
  }
};

TEST_F(CaptureOnCuda, ReplaysTrainTheSame) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int64_t steps : {1, 2, 3}) {
      for (const bool in_front : {false, true}) {
        SCOPED_TRACE(testing::Message() << "precision " << static_cast<int>(precision) << ", "
                                        << steps << " steps, zero_grad in front: " << in_front);
        auto setup = with_steps(steps, precision);
        setup.clears_in_front = in_front;
        EXPECT_GE(expect_same_training(setup, 4).replays, 8);
      }
    }
  }
}

TEST_F(CaptureOnCuda, ReplaysTrainTheSameOutsideOfWindows) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    auto setup = with_steps(1, precision);
    setup.windows = false;
    EXPECT_GE(expect_same_training(setup, 4).replays, 12);
  }
}

TEST_F(CaptureOnCuda, DropsOutAsAnEagerStepDoes) {
  for (const int64_t steps : {1, 2}) {
    auto setup = with_steps(steps);
    setup.dropout = 0.4;
    EXPECT_GE(expect_same_training(setup, 4).replays, 8);
  }
}

TEST_F(CaptureOnCuda, DropsOutAnewInEveryReplay) {
  auto setup = with_steps(1);
  setup.dropout = 0.5;
  CapturedTraining training(setup);
  const SameBatch batch(training);
  auto step =
      training.accelerator.capture([&](const torch::Tensor& x) { return training.model(x); });
  std::vector<torch::Tensor> outputs;
  for (int i = 0; i < 8; ++i) outputs.push_back(step(batch.x));
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  EXPECT_FALSE(outputs[6].equal(outputs[7]));
}

// The search is on only in warm-up calls, and never if the program turns it off.
TEST_F(CaptureOnCuda, SearchesForFastAlgorithmsInItsWarmup) {
  for (const bool tune : {true, false}) {
    for (const std::optional<bool> asked : {std::optional<bool>(), std::optional(false)}) {
      auto setup = with_steps(1);
      setup.options.performance.cudnn_benchmark = asked;
      CapturedTraining training(setup);
      const SameBatch batch(training);
      std::vector<bool> searches;
      auto step = training.accelerator.capture(
          [&](const torch::Tensor& x) {
            searches.push_back(at::globalContext().benchmarkCuDNN());
            return training.model(x);
          },
          {.warmup = 2, .tune = tune});
      for (int i = 0; i < 6; ++i) step(batch.x);
      EXPECT_TRUE(step.is_captured()) << step.why_not();
      ASSERT_GE(searches.size(), 3U);
      EXPECT_EQ(searches.front(), tune && !asked);
      EXPECT_FALSE(searches.back());
      EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
    }
  }
}

TEST_F(CaptureOnCuda, SkipsWhatOverflows) {
  for (const int64_t steps : {1, 2}) {
    auto setup = with_steps(steps, Precision::fp16);
    setup.overflow_at = 1;
    setup.options.scaler = {.init_scale = 1024, .growth_interval = 3};
    const Seen seen = expect_same_training(setup, 4);
    EXPECT_GE(seen.replays, 8);
    EXPECT_NE(std::ranges::find(seen.skipped, true), seen.skipped.end());

    CapturedTraining plain(setup);
    plain.plain(3);
    CapturedTraining training(setup);
    auto step = training.captured();
    Seen unused;
    for (int i = 0; i < 3; ++i) training.epoch(step, unused);
    auto& scaler = training.accelerator.scaler();
    EXPECT_EQ(scaler.get_scale(), plain.accelerator.scaler().get_scale());
    EXPECT_EQ(scaler.status().skips, plain.accelerator.scaler().status().skips);
    EXPECT_EQ(scaler.status().updates, plain.accelerator.scaler().status().updates);
  }
}

TEST_F(CaptureOnCuda, SeesWhatTheProgramDoesBetweenReplays) {
  expect_changes_between_replays_to_count(with_steps(1));
  expect_changes_between_replays_to_count(with_steps(2));
  expect_changes_between_replays_to_count(with_steps(2, Precision::fp16));
  auto with_dropout = with_steps(1);
  with_dropout.dropout = 0.4;
  expect_changes_between_replays_to_count(with_dropout);
}

// Rounds of steps, some with an overflow, queued while the device is busy with other work, so that
// the host does not know which steps were skipped. Calls `between` before each round.
void expect_same_where_the_host_is_ahead(
    const CaptureSetup& setup,
    const std::function<void(CapturedTraining& training, int64_t round)>& between) {
  const auto train = [&](bool is_captured) {
    auto training = std::make_unique<CapturedTraining>(setup);
    auto step = training->captured();
    std::vector<std::tuple<torch::Tensor, torch::Tensor>> batches;
    for (auto&& [x, y] : training->loader) batches.emplace_back(x, y);
    const torch::Tensor big = torch::randn({8192, 8192}, torch::kCUDA);
    const auto rate = [&] { return training->adamw.param_groups()[0].options().get_lr(); };
    for (int64_t round = 0; round < 6; ++round) {
      between(*training, round);  // the previous round is still running
      training->scheduler.get_last_lr();
      if (round > 1) {
        for (int i = 0; i < 5; ++i) big.mm(big);
      }
      c10::Event other_work(at::kCUDA);
      other_work.record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(at::Device(at::kCUDA, 0)));
      const double before = rate();
      // The last round has so many steps that it waits for some of them.
      for (int64_t i = 0; i < (round < 5 ? 4 : 40); ++i) {
        for (const auto& [x, y] : batches) is_captured ? step(x, y) : training->body(x, y);
      }
      if (is_captured && round > 1 && !other_work.query()) {
        EXPECT_EQ(rate(), before) << round;  // nothing has waited
      }
    }
    EXPECT_EQ(step.is_captured(), is_captured) << step.why_not();
    return training;
  };
  const auto plain = train(false);
  const auto captured = train(true);
  expect_same_parameters(*captured, *plain);
  EXPECT_EQ(captured->scheduler.get_last_lr(), plain->scheduler.get_last_lr());
  EXPECT_GT(captured->accelerator.scaler().status().skips, 0);
  EXPECT_EQ(captured->accelerator.scaler().status().skips,
            plain->accelerator.scaler().status().skips);
}

class CaptureAhead : public CaptureOnCuda {
 protected:
  static CaptureSetup with_overflows(int64_t steps) {
    auto setup = with_steps(steps, Precision::fp16);
    setup.overflow_at = 1;
    setup.gamma = 0.995;
    setup.options.scaler = {.init_scale = 1024, .growth_interval = 1};
    return setup;
  }
};

TEST_F(CaptureAhead, TheDeviceChoosesTheRates) {
  for (const int64_t steps : {1, 2}) {
    expect_same_where_the_host_is_ahead(with_overflows(steps), [](auto&, int64_t) {});
  }
}

TEST_F(CaptureAhead, RatesSetByHandCount) {
  expect_same_where_the_host_is_ahead(with_overflows(1), [](auto& training, int64_t round) {
    if (round == 3) training.adamw.param_groups()[0].options().set_lr(0.02);
    if (round == 4) training.optimizer.param_groups()[0].options().set_lr(0.01);
  });
}

TEST_F(CaptureAhead, StepsOfTheProgramItselfCount) {
  expect_same_where_the_host_is_ahead(with_overflows(1), [](auto& training, int64_t round) {
    if (round < 3) return;
    const SameBatch batch(training);
    training.body(batch.x, batch.y);
    if (round == 4) training.scheduler.step();
  });
}

TEST_F(CaptureAhead, CheckpointsHoldAllSteps) {
  const TempFolder folder;
  int saves = 0;
  expect_same_where_the_host_is_ahead(with_overflows(2), [&](auto& training, int64_t round) {
    if (round != 3 && round != 4) return;
    const std::string path = folder.path(std::to_string(++saves));
    training.accelerator.save_state(path);
    if (round == 4) training.accelerator.load_state(path);
  });
}

// The program continues before it is known whether a step was skipped, and so whether the schedule
// moves.
TEST_F(CaptureOnCuda, RatesSetByHandStayAfterTheStepOfASchedule) {
  CapturedTraining training(with_steps(1, Precision::fp16));
  const SameBatch batch(training);
  for (int i = 0; i < 20; ++i) {
    training.body(batch.x, batch.y);
    const double rate = 0.01 * (i + 1);
    training.adamw.param_groups()[0].options().set_lr(rate);
    EXPECT_EQ(training.scheduler.get_last_lr()[0], rate);
  }
}

TEST_F(CaptureOnCuda, WaitsForAGraphOfAutogradThatIsAlive) {
  expect_to_wait_for_a_graph_of_autograd(with_steps(1));
}

TEST_F(CaptureOnCuda, StepsParametersThatComeLater) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    expect_parameters_that_come_later_to_count(with_steps(1, precision));
  }
}

// The optimizer state that its first gradient creates must not stay in the memory of a failed
// graph.
TEST_F(CaptureOnCuda, FailsWithAParameterThatComesInTheCapture) {
  const auto train = [](bool is_captured) {
    Accelerator accelerator;
    torch::manual_seed(2);
    TwoHeads net;
    torch::optim::AdamW adamw(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    int calls = 0;
    const auto body = [&](const torch::Tensor& x) {
      // The fourth call is captured.
      accelerator.backward(model(++calls < 4 ? x : x.repeat({2, 1})).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    auto step = accelerator.capture(body);
    const auto x = torch::ones({1, 3}, accelerator.device());
    for (int i = 0; i < 8; ++i) is_captured ? step(x) : body(x);
    EXPECT_EQ(contains(step.why_not(), "parameters, state or options"), is_captured);
    return net->parameters();
  };
  const auto got = train(true);
  const auto expected = train(false);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

TEST_F(CaptureOnCuda, SavesAndLoadsBetweenReplays) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    for (const int64_t steps : {1, 2}) {
      expect_to_save_and_load_between_replays(with_steps(steps, precision));
    }
  }
}

TEST_F(CaptureOnCuda, KeepsLossesAndIsNotDisturbedByOtherWork) {
  CapturedTraining plain(with_steps(2));
  CapturedTraining training(with_steps(2));
  const SameBatch batch(training);
  auto step = training.captured();
  std::vector<torch::Tensor> losses;
  std::vector<torch::Tensor> expected;
  std::vector<torch::Tensor> others;
  for (int i = 0; i < 20; ++i) {
    losses.push_back(step(batch.x, batch.y));
    expected.push_back(plain.body(batch.x, batch.y).detach());
    // This would land in memory that a graph considers its own.
    for (const int64_t size : {16, 1024, 100'000}) {
      others.push_back(torch::full({size}, 1e9, training.accelerator.device()));
    }
    if (i % 3 == 0) others.clear();
  }
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_TRUE(losses[i].equal(expected[i])) << i;
  expect_same_parameters(training, plain);
}

TEST_F(CaptureOnCuda, RunsBesideThreadsOfTheLoader) {
  auto setup = with_steps(2, Precision::bf16);
  setup.workers = 2;
  setup.rows = 200;
  EXPECT_GE(expect_same_training(setup, 2).replays, 80);
}

TEST_F(CaptureOnCuda, KeepsOneGraphOnly) {
  EXPECT_GE(expect_same_training(with_steps(1), 4, {.max_graphs = 1}).replays, 8);
}

// Anything that a failed capture leaves behind would show in random numbers, allocations and the
// next graph.
TEST_F(CaptureOnCuda, FailingOneRunsEagerlyAsIfNothingHadHappened) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    for (const int64_t steps : {1, 2}) {
      for (const bool waits : {false, true}) {
        auto setup = with_steps(steps, precision);
        setup.dropout = 0.2;
        CapturedTraining plain(setup);
        const Seen expected = plain.plain(3);
        CapturedTraining training(setup);
        int calls = 0;
        auto step =
            training.accelerator.capture([&](const torch::Tensor& x, const torch::Tensor& y) {
              auto loss = training.body(x, y);
              if (waits) loss.item<float>();
              if (!waits && ++calls == 4) throw std::runtime_error("not in a graph");
              return loss;
            });
        Seen got;
        for (int i = 0; i < 3; ++i) training.epoch(step, got);
        EXPECT_FALSE(step.why_not().empty());
        EXPECT_FALSE(step.is_captured());
        expect_same(got, expected);
        expect_same_parameters(training, plain);
      }
    }
  }
  EXPECT_GE(expect_same_training(with_steps(1), 4).replays, 8);
}

TEST_F(CaptureOnCuda, RunsOptimizersOfTheHostEagerly) {
  Accelerator accelerator;
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto model = accelerator.prepare_model(net);
  auto optimizer = accelerator.prepare_optimizer(sgd, {.fused = false});
  auto step = accelerator.capture([&](const torch::Tensor& x) {
    accelerator.backward(model(x).mean());
    optimizer.step();
    optimizer.zero_grad();
  });
  for (int i = 0; i < 6; ++i) step(scalar(1));
  EXPECT_NEAR(net->w.item<float>(), 1 - 6 * 0.1, 1e-6);
  EXPECT_TRUE(contains(step.why_not(), "optimizer"));
}

}  // namespace
