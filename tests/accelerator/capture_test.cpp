// capture() without a GPU: steps that run eagerly, and the host's part of replays, with graphs that
// rerun the step.
#include <gtest/gtest.h>

#include "accelerator/captured_training.h"
#include "accelerator/run_anew_backend.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::CaptureOptions;
using accelerant::Precision;

CaptureSetup with_steps(int64_t steps, Precision precision = Precision::no) {
  return {.options = on_cpu(precision, steps)};
}

// With graphs that rerun the step.
CaptureSetup anew(int64_t steps, Precision precision = Precision::no) {
  return run_anew(on_cpu(precision, steps));
}

TEST(CaptureOnCpu, RunsEagerlyAndSaysWhy) {
  const GatheredLog log;
  const Seen seen = expect_same_training(with_steps(3), 3);
  EXPECT_EQ(seen.replays, 0);
  EXPECT_TRUE(contains(log.text(), "CUDA graphs need a CUDA device"));
  CapturedTraining training(with_steps(1));
  const auto step = training.captured();
  EXPECT_TRUE(contains(step.why_not(), "cpu"));
  EXPECT_EQ(step.graphs(), 0);
}

TEST(CaptureOnCpu, KeepsTheMeaningOfEveryLoop) {
  for (const int64_t steps : {1, 2, 3}) {
    for (const bool in_front : {false, true}) {
      auto setup = with_steps(steps);
      setup.clears_in_front = in_front;
      setup.dropout = 0.3;
      expect_same_training(setup, 2);
    }
  }
  expect_same_training(with_steps(2, Precision::fp16), 2);
  auto overflow = with_steps(2, Precision::fp16);
  overflow.overflow_at = 1;
  expect_same_training(overflow, 2);
}

TEST(CaptureOnCpu, TakesAndReturnsNestedTensors) {
  Accelerator accelerator(on_cpu());
  using Batch = std::map<std::string, torch::Tensor>;
  auto step = accelerator.capture([](const Batch& batch, const std::vector<torch::Tensor>& more) {
    return std::tuple{batch.at("a") + batch.at("b"), std::optional<torch::Tensor>(more[1])};
  });
  const auto [sum, last] = step(Batch{{"b", scalar(1)}, {"a", scalar(2)}},
                                std::vector<torch::Tensor>{scalar(3), scalar(4)});
  EXPECT_EQ(sum.item<float>(), 3);
  EXPECT_EQ(last->item<float>(), 4);
  int calls = 0;
  auto without_result = accelerator.capture([&](const torch::Tensor&) { ++calls; });
  without_result(scalar(0));
  EXPECT_EQ(calls, 1);
}

TEST(CaptureOnCpu, RefusesOptionsOutOfRange) {
  Accelerator accelerator(on_cpu());
  const auto with = [&](const CaptureOptions& options) {
    return whole_error_of([&] { auto step = accelerator.capture([] {}, options); });
  };
  EXPECT_TRUE(contains(with({.warmup = 0}), "warmup"));
  EXPECT_TRUE(contains(with({.max_graphs = 0}), "max_graphs"));
}

TEST(Capture, ReplaysTrainTheSame) {
  for (const int64_t steps : {1, 2, 3}) {
    for (const bool in_front : {false, true}) {
      for (const double dropout : {0.0, 0.3}) {
        SCOPED_TRACE(testing::Message() << steps << " steps, zero_grad in front: " << in_front);
        auto setup = anew(steps);
        // A step that reruns asks the loader how many batches are left. With a short window of one
        // batch, the answer matches the one at capture wherever it matters.
        if (steps == 3) setup.rows = 26;
        setup.clears_in_front = in_front;
        setup.dropout = dropout;
        EXPECT_GE(expect_same_training(setup, 4).replays, 8);
      }
    }
  }
}

// Replays and eager micro-steps share a window, and this is not reported as a mistake.
TEST(Capture, LongWindowsAreToldNothing) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    const GatheredLog log;
    auto setup = anew(8, precision);
    setup.options.warnings.slow_precision = false;
    setup.rows = 64;
    expect_same_training(setup, 4);
    EXPECT_EQ(log.text(), "");
  }
}

TEST(Capture, ReplaysTrainTheSameOutsideOfWindows) {
  for (const bool in_front : {false, true}) {
    for (const Precision precision : {Precision::no, Precision::fp16}) {
      auto setup = anew(1, precision);
      setup.options.scaler.init_scale = 64;  // these graphs cannot detect an overflow
      setup.windows = false;
      setup.clears_in_front = in_front;
      EXPECT_GE(expect_same_training(setup, 4).replays, 12);
    }
  }
}

TEST(Capture, ReplaysUpdateTheLossScale) {
  auto setup = anew(2, Precision::fp16);
  setup.options.scaler = {.init_scale = 64, .growth_interval = 3};
  EXPECT_GE(expect_same_training(setup, 4).replays, 8);
}

TEST(Capture, HasOneGraphForMicroStepsAndOneForBoundaries) {
  auto setup = anew(3);
  setup.rows = 24;  // two windows per epoch
  CapturedTraining training(setup);
  auto step = training.captured();
  Seen seen;
  for (int i = 0; i < 3; ++i) training.epoch(step, seen);
  EXPECT_EQ(step.graphs(), 2);
  EXPECT_TRUE(step.is_captured());
  EXPECT_EQ(seen.replays, 18 - 3);
}

TEST(Capture, KeepsAsManyGraphsAsItMay) {
  CapturedTraining training(anew(1));
  auto step = training.captured({.max_graphs = 2});
  const auto run = [&](int64_t rows) {
    step(torch::ones({rows, 3}), torch::ones({rows, 2}));
    return step.is_captured();
  };
  for (int i = 0; i < 3; ++i) run(1);
  EXPECT_TRUE(run(1));
  EXPECT_FALSE(run(2));  // the first with this shape
  EXPECT_TRUE(run(2));
  EXPECT_FALSE(run(3));
  EXPECT_TRUE(run(1));
  EXPECT_TRUE(run(3));  // replaces the graph of 2 rows
  EXPECT_EQ(step.graphs(), 2);
  EXPECT_TRUE(run(1));
  EXPECT_TRUE(run(2));
  EXPECT_EQ(step.graphs(), 2);
  for (int64_t i = 0; i < 40; ++i) run(1 + i % 3);  // each graph replaces the one needed next
  EXPECT_TRUE(contains(step.why_not(), "max_graphs"));
  EXPECT_EQ(step.graphs(), 0);
}

TEST(Capture, SeesWhatTheProgramDoesBetweenReplays) {
  expect_changes_between_replays_to_count(anew(2));
}

TEST(Capture, WaitsForAGraphOfAutogradThatIsAlive) {
  expect_to_wait_for_a_graph_of_autograd(anew(1));
}

TEST(Capture, IsNotKeptFromItByCastsThatAnAutocastHolds) {
  CapturedTraining training(anew(1, Precision::bf16));
  auto step = training.captured();
  const SameBatch batch(training);
  const accelerant::AutocastGuard autocast({.device_type = at::kCPU, .dtype = at::kBFloat16});
  for (int i = 0; i < 6; ++i) step(batch.x, batch.y);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
}

TEST(Capture, StepsParametersThatComeLater) {
  expect_parameters_that_come_later_to_count(run_anew());
}

TEST(Capture, SavesAndLoadsBetweenReplays) {
  for (const int64_t steps : {1, 2}) expect_to_save_and_load_between_replays(anew(steps));
}

TEST(Capture, CorrectsTheShortWindowOfAStream) {
  const auto train = [](bool captured) {
    Accelerator accelerator = accelerator_of(anew(3));
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, sgd, accelerant::data::loader(CountingStream{.length = 7}));
    const auto body = [&](const torch::Tensor& x) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    auto step = accelerator.capture(body);
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (auto&& x : loader) captured ? step(x) : body(x);
    }
    EXPECT_EQ(step.is_captured(), captured);
    return net->w.item<float>();
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Capture, FailingOneRunsEagerlyAsIfNothingHadHappened) {
  for (const int64_t steps : {1, 2}) {
    auto setup = anew(steps);
    CapturedTraining plain(setup);
    const Seen expected = plain.plain(3);
    CapturedTraining training(setup);
    int calls = 0;
    auto step = training.accelerator.capture([&](const torch::Tensor& x, const torch::Tensor& y) {
      // Throws before anything changes tensors: unlike with CUDA, capturing these graphs does.
      auto window = training.accelerator.accumulate(training.model);
      if (++calls == 4) throw std::runtime_error("not in a graph");
      return training.inner(x, y);
    });
    Seen got;
    const GatheredLog log;
    for (int i = 0; i < 3; ++i) training.epoch(step, got);
    EXPECT_EQ(step.why_not(), "not in a graph");
    EXPECT_TRUE(contains(log.text(), "not in a graph"));
    expect_same(got, expected);
    expect_same_parameters(training, plain);
  }
}

TEST(Capture, RefusesWhatAGraphCannotHold) {
  Accelerator accelerator = accelerator_of(run_anew());
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto decay = accelerant::optim::exponential(sgd, {.gamma = 0.9});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
  const auto reason_of = [&](auto&& body) {
    auto step = accelerator.capture(body);
    for (int i = 0; i < 5; ++i) step(scalar(1));
    EXPECT_FALSE(step.is_captured());
    return step.why_not();
  };
  EXPECT_TRUE(contains(reason_of([&](const torch::Tensor& x) {
                         accelerator.backward(model(x).sum(), 1);
                         optimizer.step();
                         optimizer.zero_grad();
                       }),
                       "number on the host"));
  EXPECT_TRUE(contains(reason_of([&](const torch::Tensor& x) {
                         optimizer.step([&] {
                           optimizer.zero_grad();
                           const auto loss = model(x).sum();
                           accelerator.backward(loss);
                           return loss;
                         });
                       }),
                       "closure"));
  EXPECT_TRUE(contains(reason_of([&](const torch::Tensor& x) {
                         for (int i = 0; i < 2; ++i) {
                           accelerator.backward(model(x).sum());
                           optimizer.step();
                           scheduler.step();
                           optimizer.zero_grad();
                         }
                       }),
                       "after its schedule"));
  accelerator.drop_gradients();
  EXPECT_TRUE(contains(reason_of([&](const torch::Tensor&) { optimizer.step(); }), "gradients"));
}

}  // namespace
