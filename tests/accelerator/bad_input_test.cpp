// What users get wrong in a training loop, and what they are told.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(BadInput, AnEmptyDataSetIsAnEmptyLoop) {
  Accelerator accelerator(on_cpu());
  const GatheredLog log;  // keeps the warning out of the output
  const auto loader = accelerator.prepare(counting_loader(0));
  EXPECT_EQ(loader.length(), 0);
  EXPECT_EQ(accelerator.updates_per_epoch(loader), 0);
  for ([[maybe_unused]] auto&& batch : loader) ADD_FAILURE();
}

TEST(BadInput, ABatchSizeOfZeroIsRefused) {
  EXPECT_TRUE(contains(error_of([] { counting_loader(4, {.batch_size = 0}); }), "batch_size"));
}

TEST(BadInput, ALoaderInTwoLoopsAtOnceIsRefused) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(4));
  for ([[maybe_unused]] auto&& outer : loader) {
    const auto error = error_of([&] {
      for ([[maybe_unused]] auto&& inner : loader) break;
    });
    EXPECT_TRUE(contains(error, "loop"));
  }
  int64_t batches = 0;
  for ([[maybe_unused]] auto&& batch : loader) ++batches;  // works again afterwards
  EXPECT_EQ(batches, 4);
}

TEST(BadInput, ANanLossSkipsTheStepUnderFp16) {
  OneWeight t(on_cpu(Precision::fp16));
  t.backward(kNan);
  EXPECT_TRUE(t.optimizer.step().skipped());
  EXPECT_EQ(t.weight(), 1.0F);
}

TEST(BadInput, ANanLossIsAnErrorWhereThatIsAskedFor) {
  OneWeight t(on_cpu());
  const auto error = error_of(
      [&] { t.accelerator.backward(t.model(scalar(kNan)).mean(), {.error_if_nonfinite = true}); });
  EXPECT_TRUE(contains(error, "The loss is not finite"));
  EXPECT_FALSE(t.net->w.grad().defined());
  // Otherwise it is passed through, as in PyTorch.
  t.backward(kNan);
  t.optimizer.step();
  EXPECT_TRUE(std::isnan(t.weight()));
}

TEST(BadInput, AnUndefinedLossIsRefused) {
  Accelerator accelerator(on_cpu());
  EXPECT_TRUE(contains(error_of([&] { accelerator.backward(torch::Tensor()); }), "no loss"));
}

TEST(BadInput, ALossOfSeveralElementsNeedsAGradient) {
  Scale net;
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  const auto x = torch::tensor({1.0F, 2.0F});
  EXPECT_THROW(accelerator.backward(model(x)), accelerant::Error);
  accelerator.backward(model(x), {.gradient = torch::tensor({10.0F, 1.0F})});
  EXPECT_EQ(net->w.grad().item<float>(), 12.0F);
}

TEST(BadInput, NegativeClippingLimitsAreRefused) {
  Scale net;
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  accelerator.backward(model(scalar(1)).mean());
  EXPECT_TRUE(contains(error_of([&] { accelerator.clip_grad_norm_(model, -1.0); }), "-1"));
}

TEST(BadInput, AStepWithoutGradientsIsNothingToDo) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    OneWeight t(on_cpu(precision));
    EXPECT_EQ(t.optimizer.step().kind(), StepResult::Kind::nothing_to_do);
    EXPECT_FALSE(t.optimizer.step_was_skipped());
  }
}

TEST(BadInput, AnOptimizerIsHeldWhileItsStepHadNothingToDo) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto constant = accelerant::optim::constant(sgd);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, constant);
  optimizer.step();
  scheduler.step();
  EXPECT_EQ(constant.last_step(), 0);
}

}  // namespace
}  // namespace accelerator_test
