// Windows of accumulated gradients as a training loop sees them.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

// Runs loops over loaders of the given lengths and records at which batches gradients synchronise.
std::string sync_pattern(Accelerator& accelerator, const std::vector<int64_t>& lengths) {
  Scale net;
  const auto model = accelerator.prepare(net);
  std::string pattern;
  for (const int64_t length : lengths) {
    const auto loader = accelerator.prepare(counting_loader(length));
    for ([[maybe_unused]] auto&& batch : loader) {
      const auto window = accelerator.accumulate(model);
      pattern += accelerator.sync_gradients() ? 'S' : '.';
    }
    pattern += ' ';
  }
  return pattern;
}

TEST(Accumulation, SyncsAtEveryKthCallAndAtTheLastBatchWhichStartsAFreshWindow) {
  Accelerator accelerator(on_cpu(Precision::no, 3));
  EXPECT_EQ(sync_pattern(accelerator, {7, 5, 3, 1}), "..S..SS ..S.S ..S S ");
}

TEST(Accumulation, SyncEachBatchDoesNotChangeTheCadence) {
  auto options = on_cpu(Precision::no, 3);
  options.gradient_accumulation.sync_each_batch = true;
  Accelerator accelerator(options);
  EXPECT_EQ(sync_pattern(accelerator, {7}), "..S..SS ");
}

TEST(Accumulation, TwoBlocksForOneBatchHaveWindowsOfTheirOwn) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  torch::optim::SGD sgd_b(b->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [ma, mb, oa, ob, loader] = accelerator.prepare(a, b, sgd_a, sgd_b, counting_loader(4));
  std::string pattern;
  const auto train = [&](const auto& model, const auto& optimizer, const torch::Tensor& x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    pattern += optimizer.step().kind() == StepResult::Kind::submitted ? 'S' : '.';
    optimizer.zero_grad();
  };
  for (auto&& [x] : loader) {
    train(ma, oa, x);
    train(mb, ob, x);
  }
  EXPECT_EQ(pattern, "..SS..SS");
}

TEST(Accumulation, StepZeroGradAndScheduleDoNothingInTheMiddleOfAWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto decay = accelerant::optim::step_decay(sgd, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(2)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::accumulating);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F);
  EXPECT_EQ(net->w.grad().item<float>(), 1.0F);
  EXPECT_EQ(decay.last_step(), 0);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(decay.last_step(), 1);
}

TEST(Accumulation, AnEvaluationInsideTheLoopDoesNotDisturbIt) {
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, loader, evaluation] =
      accelerator.prepare(net, counting_loader(5), counting_loader(3));
  std::string pattern;
  int batch_number = 0;
  for ([[maybe_unused]] auto&& batch : loader) {
    for ([[maybe_unused]] auto&& inner : evaluation) {
      if (batch_number == 2) break;  // left early
    }
    try {
      for ([[maybe_unused]] auto&& inner : evaluation) throw std::runtime_error("in evaluation");
    } catch (const std::runtime_error&) {
    }
    const auto window = accelerator.accumulate(model);
    pattern += window.sync_gradients() ? 'S' : '.';
    ++batch_number;
  }
  EXPECT_EQ(pattern, ".S.SS");
}

TEST(Accumulation, WithoutSynchronisingAtTheEndTheWindowGoesOnInTheNextEpoch) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto options = on_cpu(Precision::no, 4);
  options.gradient_accumulation.sync_with_dataloader = false;
  Accelerator accelerator(options);
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(6));
  std::vector<float> gradients;
  for ([[maybe_unused]] auto epoch : accelerator.epochs(2)) {
    for (auto&& [x] : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).mean());
      if (optimizer.step().kind() == StepResult::Kind::submitted) {
        gradients.push_back(net->w.grad().item<float>());
      }
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(gradients, (std::vector<float>{1.5F, 2.5F, 3.5F}));  // 0-3; 4, 5, 0, 1; 2-5
  EXPECT_EQ(accelerator.updates_per_epoch(loader), 1);
}

TEST(Accumulation, TheScopeMayCloseBeforeTheStep) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    OneWeight t(on_cpu(precision, 2));
    for (int i = 0; i < 6; ++i) {
      {
        const auto window = t.accelerator.accumulate(t.model);
        t.backward(1);
      }
      const auto result = t.optimizer.step();
      t.optimizer.zero_grad();
      EXPECT_EQ(result.kind(),
                i % 2 == 1 ? StepResult::Kind::submitted : StepResult::Kind::accumulating);
    }
    EXPECT_EQ(t.weight(), 1.0F - 3.0F);
    t.backward(1);  // the scaler's pending update
    EXPECT_EQ(t.accelerator.scaler().status().updates, precision == Precision::fp16 ? 3 : 0);
  }
}

TEST(Accumulation, ZeroGradMayStandBeforeTheForward) {
  OneWeight t(on_cpu(Precision::no, 3), 0.0);
  for (int i = 0; i < 6; ++i) {
    const auto window = t.accelerator.accumulate(t.model);
    t.optimizer.zero_grad();
    t.backward(i);
    if (t.optimizer.step().kind() == StepResult::Kind::submitted) {
      EXPECT_FLOAT_EQ(t.gradient(), i == 2 ? 1.0F : 4.0F);
    }
  }
}

TEST(Accumulation, GradientsMayBeDroppedWithoutAStep) {
  OneWeight t(on_cpu(), 0.0);
  const auto window = t.accelerator.accumulate(t.model);
  t.backward(1);
  t.optimizer.zero_grad();
  EXPECT_FALSE(t.net->w.grad().defined());
  EXPECT_EQ(t.optimizer.step().kind(), StepResult::Kind::nothing_to_do);
}

TEST(Accumulation, ChangingTheNumberOfStepsCountsFromTheNextMicroStep) {
  OneWeight t(on_cpu(Precision::no, 4), 0.0);
  const auto micro_step = [&](double x) {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(x);
    return t.optimizer.step().kind();
  };
  micro_step(2);
  t.accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(micro_step(6), StepResult::Kind::submitted);
  EXPECT_FLOAT_EQ(t.gradient(), 4.0F);
  EXPECT_TRUE(contains(error_of([&] { t.accelerator.set_gradient_accumulation_steps(0); }),
                       "expected at least 1, got 0"));
}

TEST(Accumulation, ScopesDoNotNest) {
  Scale net;
  Scale other;
  Accelerator accelerator(on_cpu());
  auto [model, other_model] = accelerator.prepare(net, other);
  const auto window = accelerator.accumulate(model);
  EXPECT_TRUE(contains(error_of([&, &m = model] { const auto inner = accelerator.accumulate(m); }),
                       "accumulate() is already open"));
  EXPECT_TRUE(
      contains(error_of([&, &m = other_model] { const auto inner = accelerator.accumulate(m); }),
               "accumulate() is already open"));
}

TEST(Accumulation, AnOptimizerWaitsForOneWindowAtATime) {
  OneWeight t(on_cpu(Precision::no, 2));
  {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(1);
  }
  EXPECT_TRUE(contains(error_of([&] { const auto window = t.accelerator.accumulate(); }),
                       "window over other models"));
  t.accelerator.drop_gradients();
  EXPECT_NO_THROW(static_cast<void>(t.accelerator.accumulate()));
}

TEST(Accumulation, BackwardOutsideAWindowWarnsOnce) {
  const GatheredLog log;
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  const auto model = accelerator.prepare(net);
  accelerator.backward(model(scalar(3)).mean());
  accelerator.backward(model(scalar(3)).mean());
  EXPECT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(contains(log.text(), "outside accumulate()"));
  EXPECT_EQ(net->w.grad().item<float>(), 6.0F);  // each counts in full
}

TEST(Accumulation, SyncGradientsCanBeSetByHand) {
  OneWeight t(on_cpu());
  EXPECT_TRUE(t.accelerator.sync_gradients());
  t.accelerator.set_sync_gradients(false);
  t.backward(1);
  EXPECT_EQ(t.optimizer.step().kind(), StepResult::Kind::accumulating);
  t.optimizer.zero_grad();
  EXPECT_TRUE(t.net->w.grad().defined());
  t.accelerator.set_sync_gradients(true);
  EXPECT_EQ(t.optimizer.step().kind(), StepResult::Kind::submitted);
}

TEST(Accumulation, AParameterOfTwoOptimizersIsCorrectedOnce) {
  Scale net;
  torch::optim::SGD first(net->parameters(), 0.0);
  torch::optim::SGD second(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, a] = accelerator.prepare(net, first);
  auto b = accelerator.prepare_optimizer(second, {.shared_parameters = true});
  const auto loader =
      accelerator.prepare(accelerant::data::loader(CountingStream{.length = 2}, {.batch_size = 1}));
  for (auto&& x : loader) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    accelerator.unscale_gradients();
    a.step();
    b.step();
  }
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 0.5F);
}

TEST(Accumulation, TwoAcceleratorsDoNotDisturbEachOther) {
  Scale net_a;
  Scale net_b;
  Accelerator a(on_cpu(Precision::no, 2));
  Accelerator b(on_cpu(Precision::fp16, 3));
  const auto model_a = a.prepare(net_a);
  const auto model_b = b.prepare(net_b);
  const auto window_a = a.accumulate(model_a);
  const auto window_b = b.accumulate(model_b);
  EXPECT_EQ(a.gradient_accumulation_steps(), 2);
  EXPECT_EQ(b.gradient_accumulation_steps(), 3);
  EXPECT_FALSE(a.scaler().is_enabled());
  EXPECT_TRUE(b.scaler().is_enabled());
  EXPECT_TRUE(contains(error_of([&] { const auto scope = a.accumulate(model_b); }),
                       "prepared by another Accelerator"));
}

}  // namespace
}  // namespace accelerator_test
