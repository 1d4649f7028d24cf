// FusedStep under a GradScaler, with 16-bit types, and across saving and loading.
#include <accelerant/amp/grad_scaler.h>

#include <sstream>

#include "optim/fused_step_helpers.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::FusedStep;
using accelerant::GradScaler;

class FusedStepScaling : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    torch::manual_seed(11);
  }
};
ON_EVERY_DEVICE(FusedStepScaling);

// The same gradients on the scaler's own path and on ours, with overflows.
TEST_P(FusedStepScaling, AgreesWithThePlainPath) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    for (const bool unscale_first : {false, true}) {
      const auto [ours, theirs, optimizer, stock] = twins(kind, options());
      FusedStep fused(*optimizer);
      GradScaler our_scaler = started_scaler(device(), {.init_scale = 1024, .growth_interval = 3});
      GradScaler their_scaler =
          started_scaler(device(), {.init_scale = 1024, .growth_interval = 3});
      for (int i = 0; i < 9; ++i) {
        set_random_gradients(ours, our_scaler.get_scale());
        const bool overflow = i == 0 || i == 5;
        if (overflow) ours[6].mutable_grad()[20'000] = i == 0 ? kInf : kNan;
        copy_gradients(ours, theirs);
        if (unscale_first) our_scaler.unscale_(*optimizer);
        const at::Tensor norm = fused.clip_grad_norm_(2.0, our_scaler);
        EXPECT_EQ(fused.step(our_scaler).skipped(), overflow) << kind.name << i;
        our_scaler.update();
        their_scaler.unscale_(*stock);
        const double expected = torch::nn::utils::clip_grad_norm_(theirs, 2.0);
        if (!overflow) {
          EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
        }
        EXPECT_EQ(their_scaler.step(*stock).skipped(), overflow);
        their_scaler.update();
        EXPECT_EQ(our_scaler.get_scale(), their_scaler.get_scale());
      }
      expect_close(ours, theirs, 2e-5, kind.name);
      EXPECT_EQ(accelerant::optim::optimizer_state_dict(*optimizer, {}).values,
                accelerant::optim::optimizer_state_dict(*stock, {}).values);
    }
  }
}

TEST_P(FusedStepScaling, GradientsKeepTheirScaledValues) {
  at::Tensor parameter = parameter_with_grad(full({3}, 8.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(fused.step(scaler).skipped());
  EXPECT_TRUE(all_equal(parameter.grad(), 8.0));
  EXPECT_TRUE(all_equal(parameter, -2.0));
}

TEST_P(FusedStepScaling, AnOverflowChangesNothingAndIsNamed) {
  std::vector<at::Tensor> parameters = awkward_parameters(options());
  torch::optim::AdamW optimizer(parameters);
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.name_parameters(std::vector<std::pair<std::string, at::Tensor>>{{"wide", parameters[6]}});
  set_random_gradients(parameters);
  fused.step(scaler);
  scaler.update(4.0);
  const auto before = copies_of(parameters);
  parameters[6].mutable_grad()[39'000] = kInf;
  parameters[6].mutable_grad()[1] = -kInf;
  parameters[0].mutable_grad()[1][1] = kNan;
  EXPECT_TRUE(fused.step(scaler).skipped());
  expect_same(parameters, before, "skipped");
  for (const bool after_update : {false, true}) {
    if (after_update) scaler.update();
    const auto report = scaler.overflow_report();
    ASSERT_EQ(report.parameters.size(), 2U);
    EXPECT_EQ(report.parameters[0].name, "group 0 parameter 0");
    EXPECT_EQ(report.parameters[0].nan_count, 1);
    EXPECT_EQ(report.parameters[1].name, "wide");
    EXPECT_EQ(report.parameters[1].inf_count, 2);
  }
  EXPECT_EQ(scaler.get_scale(), 2.0);
  fused.sync();
  const auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer.state().at(parameters[6].unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
}

// For torch's own SGD, a buffer of zeros would mean that a step was taken.
TEST_P(FusedStepScaling, ASkippedFirstStepLeavesNoMomentum) {
  at::Tensor parameter = parameter_with_grad(full({3}, kInf));
  torch::optim::SGD optimizer({parameter},
                              torch::optim::SGDOptions(1.0).momentum(0.9).dampening(0.5));
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 1.0);
  EXPECT_TRUE(fused.step(scaler).skipped());
  scaler.update(1.0);
  EXPECT_TRUE(accelerant::optim::optimizer_state_dict(optimizer, {}).tensors.size() == 0);
  parameter.mutable_grad() = full({3}, 1.0);
  fused.step(scaler);
  EXPECT_TRUE(all_equal(parameter, -1.0));
}

TEST_P(FusedStepScaling, WhatUnscalingMakesInfiniteIsFound) {
  at::Tensor parameter = parameter_with_grad(full({3}, 3e38));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 0.5);
  EXPECT_TRUE(fused.step(scaler).skipped());
}

TEST_P(FusedStepScaling, GradientsChangedAfterUnscalingAreCheckedAgain) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  parameter.mutable_grad()[1] = kNan;
  EXPECT_TRUE(fused.step(scaler).skipped());
  EXPECT_TRUE(all_equal(parameter, 0.0));
}

TEST_P(FusedStepScaling, TheOrderOfCallsIsKept) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler unused({.device = device().type()});
  EXPECT_TRUE(contains(error_of([&] { fused.step(unused); }), "_scale is None"));
  GradScaler scaler = started_scaler(device(), 4.0);
  fused.step(scaler);
  EXPECT_TRUE(contains(error_of([&] { fused.step(scaler); }), "already been called"));
  EXPECT_TRUE(contains(error_of([&] { scaler.unscale_(optimizer); }), "after step()"));
  scaler.update();
  optimizer.zero_grad();
  EXPECT_TRUE(contains(error_of([&] { fused.step(scaler); }), "No inf checks"));
}

TEST_P(FusedStepScaling, TheReductionStandsBetweenThePasses) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler scaler = started_scaler(device(), 4.0);
  int calls = 0;
  scaler.set_found_inf_reduction([&](at::Tensor& flag) {
    ++calls;
    flag.fill_(3.0);  // another process found something
  });
  fused.clip_grad_norm_(1.0, scaler);
  EXPECT_TRUE(fused.step(scaler).skipped());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(all_equal(parameter, 0.0));
}

TEST_P(FusedStepScaling, ADisabledScalerJustSteps) {
  at::Tensor parameter = parameter_with_grad(full({4}, 1.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  GradScaler scaler({.device = device().type(), .enabled = false});
  EXPECT_FLOAT_EQ(fused.clip_grad_norm_(1.0, scaler).item<float>(), 2.0F);
  EXPECT_FALSE(fused.step(scaler).skipped());
  EXPECT_TRUE(torch::allclose(parameter, full({4}, -0.5)));
}

TEST_P(FusedStepScaling, SeveralOptimizersAndScalers) {
  at::Tensor first = parameter_with_grad(full({3}, 4.0));
  at::Tensor second = parameter_with_grad(full({3}, kInf));
  torch::optim::SGD first_optimizer({first}, 1.0);
  torch::optim::SGD second_optimizer({second}, 1.0);
  FusedStep first_fused(first_optimizer);
  FusedStep second_fused(second_optimizer);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(first_fused.step(scaler).skipped());
  EXPECT_TRUE(second_fused.step(scaler).skipped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
  ASSERT_EQ(scaler.overflow_report().parameters.size(), 1U);
  EXPECT_EQ(scaler.overflow_report().parameters[0].inf_count, 3);
  torch::optim::SGD sharing({first}, 1.0);
  FusedStep sharing_fused(sharing);
  first_fused.step(scaler);
  EXPECT_TRUE(contains(error_of([&] { sharing_fused.step(scaler); }), "unscaled twice"));
  GradScaler other = started_scaler(device(), 2.0);
  EXPECT_FALSE(sharing_fused.step(other).skipped());
}

// 16-bit parameters must match the exact ones, rounded.
void expect_close_when_rounded(const std::vector<at::Tensor>& ours,
                               const std::vector<at::Tensor>& exact, double absolute,
                               const std::string& what) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const at::ScalarType type = ours[i].scalar_type();
    EXPECT_TRUE(torch::allclose(ours[i].to(at::kFloat), exact[i].to(type).to(at::kFloat),
                                type == at::kHalf ? 1e-3 : 8e-3, absolute))
        << what << " " << type << " parameter " << i;
  }
}

TEST_P(FusedStepScaling, SixteenBitParameters) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const OptimizerCase& kind : fused_optimizers()) {
      const auto [ours, exact, optimizer, stock] = twins(kind, options(type), at::kFloat);
      FusedStep fused(*optimizer);
      GradScaler scaler = started_scaler(device(), 1.0);
      set_large_random_gradients(ours);
      copy_gradients(ours, exact);
      EXPECT_FALSE(fused.step(scaler).skipped());
      stock->step();
      // Rounded once, at the end.
      expect_close_when_rounded(ours, exact, 1e-6, kind.name);
    }
  }
}

TEST_P(FusedStepScaling, MasterWeightsKeepWhatSixteenBitsLose) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const OptimizerCase& kind : fused_optimizers()) {
      const auto [ours, exact, optimizer, stock] = twins(kind, options(type), at::kFloat);
      std::optional<FusedStep> fused(std::in_place, *optimizer,
                                     accelerant::FusedStepOptions{.master_weights = true});
      for (int i = 0; i < 6; ++i) {
        set_large_random_gradients(ours);
        copy_gradients(ours, exact);
        fused->step();
        stock->step();
        if (i == 2) {  // a new engine continues with the same master copies
          fused->sync();
          fused.reset();
          fused.emplace(*optimizer, accelerant::FusedStepOptions{.master_weights = true});
        }
      }
      expect_close_when_rounded(ours, exact, 1e-3, kind.name);
      const auto saved = accelerant::optim::optimizer_state_dict(*optimizer, {});
      const at::Tensor* const master = saved.tensors.find("master_param.group.0.6");
      ASSERT_NE(master, nullptr) << kind.name;
      EXPECT_TRUE(torch::allclose(*master, exact[6], 1e-4, 1e-5)) << kind.name;
    }
  }
}

TEST_P(FusedStepScaling, WeightsLoadedFromOutsideReplaceTheMaster) {
  at::Tensor parameter = full({4}, 1.0, at::kBFloat16).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1e-4);
  FusedStep fused(optimizer, {.master_weights = true});
  parameter.mutable_grad() = full({4}, 1.0, at::kBFloat16);
  for (int i = 0; i < 20; ++i) fused.step();
  EXPECT_LT(parameter[0].item<double>(), 1.0);  // 20 steps that are too small for bfloat16 add up
  {
    const torch::NoGradGuard no_grad;
    parameter.fill_(2.0);
  }
  fused.step();
  EXPECT_NEAR(parameter[0].item<double>(), 2.0, 1e-2);
}

TEST_P(FusedStepScaling, MixedTypesOfGradients) {
  at::Tensor ours = torch::randn({1000}, options()).requires_grad_();
  at::Tensor theirs = ours.detach().clone().requires_grad_();
  torch::optim::AdamW optimizer({ours});
  torch::optim::AdamW stock({theirs});
  FusedStep fused(optimizer);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor gradient = torch::randn({1000}, options(type));
    ours.mutable_grad().reset();
    ours.unsafeGetTensorImpl()->mutable_grad() = gradient;
    theirs.mutable_grad() = gradient.to(at::kFloat);
    fused.step();
    stock.step();
  }
  expect_close({ours}, {theirs}, 1e-6, "mixed");
}

TEST(FusedStepDouble, StepsAsTheOptimizerItself) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    const auto [ours, theirs, optimizer, stock] = twins(kind, at::kDouble);
    FusedStep fused(*optimizer);
    for (int i = 0; i < 5; ++i) {
      set_random_gradients(ours);
      copy_gradients(ours, theirs);
      fused.step();
      stock->step();
    }
    expect_close(ours, theirs, 1e-12, kind.name);
  }
}

// Trains, saves, continues; then loads and continues again: the same bits.
TEST_P(FusedStepScaling, GoesOnBitForBitAfterLoading) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    for (const bool by_torch : {false, true}) {
      const auto parameters = awkward_parameters(options());
      const auto optimizer = kind.make(parameters);
      FusedStep fused(*optimizer);
      const auto train = [&](int steps) {
        for (int i = 0; i < steps; ++i) {
          set_random_gradients(parameters);
          fused.clip_grad_norm_(1.0);
          fused.step();
        }
      };
      const auto restore = [&](const std::vector<at::Tensor>& values) {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(values[i]);
      };
      train(3);
      std::stringstream archive;
      accelerant::NamedState saved;
      if (by_torch) {
        fused.sync();
        torch::save(*optimizer, archive);
      } else {
        saved = accelerant::optim::optimizer_state_dict(*optimizer, {});
        accelerant::StateDict tensors;
        for (const auto& item : saved.tensors) tensors.insert(item.key(), item.value().clone());
        saved.tensors = tensors;
      }
      const auto values = copies_of(parameters);
      torch::manual_seed(1);
      train(4);
      const auto expected = copies_of(parameters);
      restore(values);
      if (by_torch) {
        torch::load(*optimizer, archive, device());
      } else {
        accelerant::optim::load_optimizer_state_dict(*optimizer, {}, saved);
      }
      torch::manual_seed(1);
      train(4);
      expect_same(parameters, expected, kind.name);
    }
  }
}

}  // namespace
