// Windows of accumulated gradients as a training loop sees them.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

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
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    Accelerator accelerator(on_cpu(precision, 2));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 6; ++i) {
      {
        const auto window = accelerator.accumulate(model);
        accelerator.backward(model(scalar(1)).mean());
      }
      const auto result = optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(result.kind(),
                i % 2 == 1 ? StepResult::Kind::submitted : StepResult::Kind::accumulating);
    }
    EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
    accelerator.backward(model(scalar(1)).mean());  // the scaler's pending update
    EXPECT_EQ(accelerator.scaler().status().updates, precision == Precision::fp16 ? 3 : 0);
  }
}

TEST(Accumulation, ZeroGradMayStandBeforeTheForward) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 3));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 6; ++i) {
    const auto window = accelerator.accumulate(model);
    optimizer.zero_grad();
    accelerator.backward(model(scalar(i)).mean());
    if (optimizer.step().kind() == StepResult::Kind::submitted) {
      EXPECT_FLOAT_EQ(net->w.grad().item<float>(), i == 2 ? 1.0F : 4.0F);
    }
  }
}

TEST(Accumulation, GradientsMayBeDroppedWithoutAStep) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto window = accelerator.accumulate(model);
  accelerator.backward(model(scalar(1)).mean());
  optimizer.zero_grad();
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::nothing_to_do);
}

TEST(Accumulation, ChangingTheNumberOfStepsCountsFromTheNextMicroStep) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto micro_step = [&](double x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(x)).mean());
    return optimizer.step().kind();
  };
  micro_step(2);
  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(micro_step(6), StepResult::Kind::submitted);
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 4.0F);
  EXPECT_TRUE(contains(error_of([&] { accelerator.set_gradient_accumulation_steps(0); }),
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
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(1)).mean());
  }
  EXPECT_TRUE(contains(error_of([&] { const auto window = accelerator.accumulate(); }),
                       "in the middle of a window over other models"));
  accelerator.drop_gradients();
  EXPECT_NO_THROW(static_cast<void>(accelerator.accumulate()));
}

TEST(Accumulation, BackwardOutsideAWindowWarnsOnce) {
  std::vector<std::string> messages;
  const auto before = accelerant::set_log_handler(
      [&](accelerant::LogLevel, std::string_view text) { messages.emplace_back(text); });
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  const auto model = accelerator.prepare(net);
  accelerator.backward(model(scalar(3)).mean());
  accelerator.backward(model(scalar(3)).mean());
  accelerant::set_log_handler(before);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_TRUE(contains(messages.front(), "outside of accumulate()"));
  EXPECT_EQ(net->w.grad().item<float>(), 6.0F);  // each counts in full
}

TEST(Accumulation, SyncGradientsCanBeSetByHand) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  EXPECT_TRUE(accelerator.sync_gradients());
  accelerator.set_sync_gradients(false);
  accelerator.backward(model(scalar(1)).mean());
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::accumulating);
  optimizer.zero_grad();
  EXPECT_TRUE(net->w.grad().defined());
  accelerator.set_sync_gradients(true);
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
}

TEST(Accumulation, AParameterOfTwoOptimizersIsCorrectedOnce) {
  Scale net;
  torch::optim::SGD first(net->parameters(), 0.0);
  torch::optim::SGD second(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, a, b] = accelerator.prepare(net, first, second);
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
