// Windows that are left early: by break, by an exception, or on purpose.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

TEST(Accumulation, AnEarlyBreakKeepsTheWindowOpen) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 3));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(10));
  const auto train_on = [&](const torch::Tensor& x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    const auto result = optimizer.step();
    const float gradient = net->w.grad().item<float>();
    optimizer.zero_grad();
    return result.kind() == StepResult::Kind::submitted ? std::optional(gradient) : std::nullopt;
  };
  int count = 0;
  for (auto&& [x] : loader) {
    train_on(x);
    if (++count == 5) break;  // rows 3 and 4 are in the window now
  }
  EXPECT_EQ(accelerator.step(), 2);
  for (auto&& [x] : loader) {
    EXPECT_FLOAT_EQ(train_on(x).value(), 7.0F / 3);  // with row 0
    break;
  }
  EXPECT_EQ(accelerator.step(), 0);
}

TEST(Accumulation, AnExceptionTakesTheMicroStepBack) {
  OneWeight t(on_cpu(Precision::no, 2), 0.0);
  const auto micro_step = [&](bool fails) {
    const auto window = t.accelerator.accumulate(t.model);
    if (fails) throw std::runtime_error("bad batch");
    t.backward(4);
    return t.optimizer.step().kind();
  };
  EXPECT_EQ(micro_step(false), StepResult::Kind::accumulating);
  EXPECT_THROW(micro_step(true), std::runtime_error);  // would have completed the window
  EXPECT_EQ(t.accelerator.step(), 1);
  EXPECT_FALSE(t.accelerator.sync_gradients());
  EXPECT_EQ(micro_step(false), StepResult::Kind::submitted);
  EXPECT_EQ(t.gradient(), 4.0F);
}

TEST(Accumulation, AnExceptionAfterTheStepDoesNotOpenTheWindowAgain) {
  OneWeight t(on_cpu(Precision::no, 1), 0.0);
  try {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(4);
    t.optimizer.step();
    throw std::runtime_error("no disk space for the log");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(t.accelerator.step(), 0);
  EXPECT_TRUE(t.accelerator.sync_gradients());
}

// An exception between backward and step.
TEST(Accumulation, AFailedFirstMicroStepLeavesNoGradients) {
  for (const bool items : {false, true}) {
    for (const int64_t steps : {1, 2}) {
      OneWeight t(on_cpu(Precision::no, steps), 0.0);
      const auto micro_step = [&](double x, bool fails) {
        const auto window = t.accelerator.accumulate(t.model);
        if (items) {
          t.accelerator.backward(7 * t.model(scalar(x)).sum(), fails ? 3 : 7);
        } else {
          t.backward(x);
        }
        if (fails) throw std::runtime_error("after the backward");
        t.optimizer.step();
      };
      EXPECT_THROW(micro_step(100, true), std::runtime_error);
      EXPECT_FALSE(t.net->w.grad().defined());
      for (int64_t i = 0; i < steps; ++i) micro_step(4, false);
      EXPECT_FLOAT_EQ(t.gradient(), 4.0F);
    }
  }
}

TEST(Accumulation, AHalfCompleteWindowCanBeGivenUp) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    auto options = on_cpu(precision, 3);
    options.scaler = {.init_scale = 128};
    OneWeight t(options, 0.0);
    const auto micro_step = [&](double x) {
      const auto window = t.accelerator.accumulate(t.model);
      t.backward(x);
      t.accelerator.unscale_gradients();
      t.optimizer.step();
    };
    micro_step(100);
    micro_step(100);
    t.accelerator.drop_gradients();
    EXPECT_EQ(t.accelerator.step(), 0);
    EXPECT_FALSE(t.net->w.grad().defined());
    for (int i = 0; i < 3; ++i) micro_step(4);
    EXPECT_FLOAT_EQ(t.gradient(), 4.0F);
  }
}

}  // namespace
}  // namespace accelerator_test
