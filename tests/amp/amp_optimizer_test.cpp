// GradScaler: optimizers that take scale and flag on the device.
#include <accelerant/amp/autocast.h>
#include <accelerant/amp/grad_scaler.h>

#include "support/expect_error.h"
#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;

class AmpOptimizerContract : public OnDevice {};
ON_EVERY_DEVICE(AmpOptimizerContract);

TEST_P(AmpOptimizerContract, StepUnscalesByItself) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  FusedAdam optimizer({parameter});
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(parameter.grad(), 1.0));
  EXPECT_EQ(optimizer.steps_of(parameter), 1.0);
  EXPECT_FALSE(optimizer.extra_grad_scale.defined());
}

TEST_P(AmpOptimizerContract, OverflowChangesNothing) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  parameter.mutable_grad()[2] = kInf;
  FusedAdam optimizer({parameter});
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(parameter, 0.0));
  EXPECT_EQ(parameter.grad()[0].item<double>(), 4.0);  // still scaled
  EXPECT_EQ(optimizer.steps_of(parameter), 0.0);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST_P(AmpOptimizerContract, PresetGradScaleIsGoodForOneStep) {
  for (const bool unscale_first : {false, true}) {
    at::Tensor parameter = parameter_with_grad(full({3}, 15.0));
    FusedAdam optimizer({parameter});
    optimizer.extra_grad_scale = full({}, 3.0);
    GradScaler scaler = started_scaler(device(), 5.0);
    if (unscale_first) scaler.unscale_(optimizer);
    scaler.step(optimizer);
    EXPECT_TRUE(torch::allclose(parameter.grad(), full({3}, 1.0)));
    EXPECT_FALSE(optimizer.extra_grad_scale.defined());  // valid for one step
  }
}

TEST_P(AmpOptimizerContract, TheOptimizerIsHandedScaleAndFlag) {
  for (const bool overflow : {false, true}) {
    at::Tensor parameter = parameter_with_grad(full({3}, overflow ? kNan : 4.0));
    FusedAdam optimizer({parameter});
    GradScaler scaler = started_scaler(device(), 8.0);
    scaler.step(optimizer);
    EXPECT_EQ(optimizer.seen.grad_scale.item<double>(), 8.0);
    EXPECT_EQ(optimizer.seen.found_inf.item<double>(), overflow ? 1.0 : 0.0);
    EXPECT_EQ(optimizer.seen.found_inf.device(), parameter.device());
    EXPECT_EQ(optimizer.seen.found_inf.dim(), 0);

    scaler.update(8.0);
    parameter.mutable_grad() = full({3}, 4.0);
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    EXPECT_FALSE(optimizer.seen.grad_scale.defined());  // nothing left to divide by
  }
}

// A few float16 autocast steps with one overflow; returns the parameters at the end.
std::vector<at::Tensor> train(at::Device device, bool fused, bool unscale_first, bool amsgrad) {
  auto [model, unused] = make_model(device, 3);
  const auto settings = torch::optim::AdamOptions(0.01).amsgrad(amsgrad);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (fused) {
    optimizer = std::make_unique<FusedAdam>(model->parameters(), settings);
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), settings);
  }
  GradScaler scaler({.device = device.type(), .init_scale = 1024, .growth_interval = 3});
  torch::manual_seed(4);
  for (int i = 0; i < 8; ++i) {
    optimizer->zero_grad();
    const at::Tensor x = torch::randn({4, 8}, device);
    at::Tensor loss;
    {
      const accelerant::AutocastGuard autocast({device.type(), at::kHalf});
      loss = torch::mse_loss(model->forward(x), x);
    }
    scaler.scale(loss).backward();
    if (i == 5) model->parameters()[1].mutable_grad()[0] = kInf;
    if (unscale_first) scaler.unscale_(*optimizer);
    EXPECT_EQ(scaler.step(*optimizer).skipped(), i == 5);
    scaler.update();
  }
  return model->parameters();
}

TEST_P(AmpOptimizerContract, AgreesWithThePlainOptimizer) {
  for (const bool amsgrad : {false, true}) {
    const auto expected = train(device(), /*fused=*/false, /*unscale_first=*/false, amsgrad);
    for (const bool unscale_first : {false, true}) {
      const auto actual = train(device(), /*fused=*/true, unscale_first, amsgrad);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-4, 1e-5));
      }
    }
  }
}

// The fused operators of ATen skip only if the flag is exactly 1; the sum of two overflows would
// slip through. The flag that an optimizer gets from us is always 0 or 1.
TEST_P(AmpOptimizerContract, TheFlagIsZeroOrOne) {
  const auto moved_by_aten = [&](double flag) {
    at::Tensor parameter = full({1}, 0.0);
    at::_fused_adam_({parameter}, {full({1}, 1.0)}, {full({1}, 0)}, {full({1}, 0)}, {},
                     {full({}, 1)}, 0.1, 0.9, 0.999, 0.0, 1e-8, false, false, full({}, 2.0),
                     full({}, flag));
    return parameter.item<double>() != 0.0;
  };
  EXPECT_TRUE(moved_by_aten(0.0));
  EXPECT_FALSE(moved_by_aten(1.0));
  EXPECT_TRUE(moved_by_aten(2.0));  // in PyTorch two flags of 1, summed, do not skip

  GradScaler scaler = started_scaler(device(), 2.0);
  scaler.set_found_inf_reduction([](at::Tensor& found_inf) { found_inf.fill_(2.0); });
  at::Tensor parameter = parameter_with_grad(full({1}, 1.0));
  FusedAdam optimizer({parameter});
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_EQ(optimizer.seen.found_inf.item<double>(), 1.0);
  EXPECT_TRUE(all_equal(parameter, 0.0));
}

// ATen's fused operators need one type for all tensors; an optimizer like those of the tests passes
// the error on.
TEST_P(AmpOptimizerContract, ErrorsOfTheOptimizerReachTheCaller) {
  struct Failing : torch::optim::SGD, accelerant::AmpOptimizer {
    using SGD::SGD;
    using SGD::step;
    at::Tensor step(const accelerant::AmpStepControls&) override {
      at::Tensor parameter = param_groups()[0].params()[0];
      at::_fused_adamw_({parameter.detach()}, {parameter.grad().to(at::kHalf)},
                        {torch::zeros_like(parameter)}, {torch::zeros_like(parameter)}, {},
                        {torch::ones({}, parameter.device())}, 0.1, 0.9, 0.999, 0.0, 1e-8, false,
                        false);
      return {};
    }
  } optimizer({parameter_with_grad(full({2}, 1.0))}, torch::optim::SGDOptions(1.0));
  GradScaler scaler = started_scaler(device());
  EXPECT_THROW(scaler.step(optimizer), c10::Error);
  scaler.update();  // the check was made, so the iteration can end
  EXPECT_EQ(growth_tracker(scaler), 1);
}

TEST_P(AmpOptimizerContract, GradientsSpoiledAfterUnscaleAreCaught) {
  for (const bool fused : {false, true}) {
    at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
    FusedAdam fused_adam({parameter});
    torch::optim::SGD sgd({parameter}, 1.0);
    torch::optim::Optimizer& optimizer =
        fused ? static_cast<torch::optim::Optimizer&>(fused_adam) : sgd;
    GradScaler scaler = started_scaler(device(), 4.0);
    scaler.unscale_(optimizer);
    parameter.mutable_grad().fill_(kNan);
    EXPECT_TRUE(scaler.step(optimizer).skipped());
    EXPECT_TRUE(all_equal(parameter, 0.0));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
  }
}

TEST_P(AmpOptimizerContract, ReplacedAndAddedGradientsAreCaught) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  at::Tensor late = torch::zeros({2}, options()).requires_grad_();
  torch::optim::SGD optimizer({parameter, late}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  parameter.mutable_grad() = full({3}, kInf);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  scaler.update();

  parameter.mutable_grad() = full({3}, 4.0);
  scaler.unscale_(optimizer);
  late.mutable_grad() = full({2}, kNan);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
}

}  // namespace
