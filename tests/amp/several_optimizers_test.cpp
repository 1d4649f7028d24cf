// GradScaler: several optimizers, losses and devices.
#include <accelerant/amp/grad_scaler.h>

#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;

class SeveralOptimizers : public OnDevice {};
ON_EVERY_DEVICE(SeveralOptimizers);

TEST_P(SeveralOptimizers, EachSkipsForItself) {
  at::Tensor clean = parameter_with_grad(full({2}, 4.0));
  at::Tensor bad = parameter_with_grad(full({2}, kInf));
  torch::optim::SGD clean_optimizer({clean}, 1.0);
  torch::optim::SGD bad_optimizer({bad}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(clean_optimizer).skipped());
  EXPECT_TRUE(scaler.step(bad_optimizer).skipped());
  scaler.update();
  EXPECT_TRUE(all_equal(clean, -1.0));
  EXPECT_TRUE(all_equal(bad, 0.0));
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST_P(SeveralOptimizers, OneBackoffForTwoOverflows) {
  torch::optim::SGD first({parameter_with_grad(full({2}, kInf))}, 1.0);
  torch::optim::SGD second({parameter_with_grad(full({2}, kNan))}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.step(first);
  scaler.step(second);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

// Trains two models on two mixed losses; returns the final scale (1 without a scaler).
double train_two(at::Device device, GradScaler* scaler, ModelAndOptimizer& m0,
                 ModelAndOptimizer& m1, int overflow_at) {
  torch::manual_seed(11);
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = torch::randn({8, 8}, device);
    const at::Tensor y = torch::randn({8, 8}, device);
    m0.optimizer->zero_grad();
    m1.optimizer->zero_grad();
    const at::Tensor output0 = m0.model->forward(x);
    const at::Tensor output1 = m1.model->forward(x);
    const at::Tensor loss0 = torch::mse_loss(0.3 * output0 + 0.7 * output1, y);
    const at::Tensor loss1 = torch::mse_loss(0.6 * output0 - 0.4 * output1, y);
    if (scaler == nullptr) {
      loss0.backward({}, /*retain_graph=*/true);
      loss1.backward();
      m0.optimizer->step();
      if (i != overflow_at) m1.optimizer->step();
      continue;
    }
    scaler->scale(loss0).backward({}, /*retain_graph=*/true);
    scaler->scale(loss1).backward();
    if (i == overflow_at) m1.model->parameters()[0].mutable_grad()[0][0] = kInf;
    scaler->unscale_(*m0.optimizer);
    EXPECT_FALSE(found(*scaler, *m0.optimizer));
    scaler->step(*m0.optimizer);
    EXPECT_EQ(scaler->step(*m1.optimizer).skipped(), i == overflow_at);
    scaler->update();
  }
  return scaler == nullptr ? 1.0 : scaler->get_scale();
}

TEST_P(SeveralOptimizers, TwoModelsWithTwoLossesEqualTheControl) {
  auto control0 = make_model(device(), 1, 0.1);
  auto control1 = make_model(device(), 2, 0.1);
  auto scaled0 = make_model(device(), 1, 0.1);
  auto scaled1 = make_model(device(), 2, 0.1);
  train_two(device(), nullptr, control0, control1, 2);
  GradScaler scaler({.device = GetParam(), .init_scale = 128, .growth_interval = 1});
  EXPECT_EQ(train_two(device(), &scaler, scaled0, scaled1, 2), 128 * 8 * 0.5);
  EXPECT_LT(largest_difference(control0.model, scaled0.model), 1e-6);
  EXPECT_LT(largest_difference(control1.model, scaled1.model), 1e-6);
}

TEST_P(SeveralOptimizers, ScaleAndGradientsMayBeOnDifferentDevices) {
  // The scale on the CPU and gradients here, then the reverse. On the CPU both are the same.
  const std::pair<at::Device, at::Device> cases[] = {{at::kCPU, device()}, {device(), at::kCPU}};
  for (const auto& [scale_device, gradient_device] : cases) {
    for (const bool overflow : {false, true}) {
      GradScaler scaler({.device = GetParam(), .init_scale = 4, .growth_interval = 1});
      scaler.scale(torch::ones({}, scale_device));
      at::Tensor parameter =
          parameter_with_grad(torch::full({3}, overflow ? kInf : 4.0, gradient_device));
      torch::optim::SGD optimizer({parameter}, 1.0);
      EXPECT_EQ(scaler.step(optimizer).skipped(), overflow);
      ASSERT_EQ(scaler.found_inf(optimizer).size(), 1U);
      EXPECT_EQ(scaler.found_inf(optimizer)[0].device(), parameter.device());
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), overflow ? 2.0 : 8.0);
      EXPECT_TRUE(all_equal(parameter, overflow ? 0.0 : -1.0));
    }
  }
}

TEST_P(SeveralOptimizers, TwoDevicesWithOverflowSkipTheAmpOptimizer) {
  at::Tensor here = parameter_with_grad(full({2}, kInf));
  at::Tensor there = parameter_with_grad(torch::full({2}, kInf));
  FusedAdam optimizer({here, there}, torch::optim::AdamOptions(1.0));
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_EQ(optimizer.seen.found_inf.item<double>(), 1.0);  // not the sum, 2
  EXPECT_TRUE(all_equal(here, 0.0));
  EXPECT_TRUE(all_equal(there, 0.0));
  EXPECT_EQ(optimizer.steps_of(here), 0.0);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST_P(SeveralOptimizers, OneFlagForEachDevice) {
  torch::optim::SGD optimizer(
      {parameter_with_grad(full({2}, 4.0)), parameter_with_grad(full({2}, 4.0, at::kDouble)),
       parameter_with_grad(torch::full({2}, 4.0))},
      1.0);
  GradScaler scaler = started_scaler(device());
  scaler.unscale_(optimizer);
  EXPECT_EQ(scaler.found_inf(optimizer).size(), on_cuda() ? 2U : 1U);
}

}  // namespace
