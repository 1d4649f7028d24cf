// GradScaler: unscaling and the check for inf and nan.
#include <accelerant/amp/grad_scaler.h>
#include <amp/unscale.h>

#include "amp/gradient_checks.h"
#include "amp/unscale.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;
using accelerant::non_finite_check_and_unscale_;
using accelerant::kernels::Writing;

class Unscale : public OnDevice {
 protected:
  at::Tensor dense() const { return full({10, 10}, 4.0); }
  at::Tensor transposed() const { return full({10, 10}, 4.0).t(); }
  at::Tensor column_slice() const { return full({10, 10}, 4.0).slice(1, 0, 5); }

  std::vector<std::vector<at::Tensor>> layouts() const {
    return {{dense(), dense()},
            {dense(), transposed()},
            {dense(), column_slice()},
            {column_slice(), column_slice()}};
  }

  float unscale(const std::vector<at::Tensor>& gradients, double inv_scale) const {
    const at::Tensor found_inf = full({}, 0.0);
    non_finite_check_and_unscale_(gradients, found_inf, full({}, inv_scale));
    return found_inf.item<float>();
  }
};
ON_EVERY_DEVICE(Unscale);

TEST_P(Unscale, UnscalesAllLayouts) {
  for (const auto& gradients : layouts()) {
    EXPECT_EQ(unscale(gradients, 0.25), 0.0F);
    for (const at::Tensor& gradient : gradients) EXPECT_TRUE(all_equal(gradient, 1.0));
  }
}

TEST_P(Unscale, AnInfOrNanAnywhereIsFound) {
  for (const double bad : {kInf, -kInf, kNan}) {
    for (std::size_t where = 0; where < 2; ++where) {
      for (auto& gradients : layouts()) {
        gradients[where][2][2] = bad;
        EXPECT_EQ(unscale(gradients, 0.25), 1.0F);
      }
    }
  }
}

TEST_P(Unscale, OnlyTheSliceChanges) {
  const at::Tensor base = full({10, 10}, 4.0);
  unscale({base.slice(1, 0, 5)}, 0.25);
  EXPECT_TRUE(all_equal(base.slice(1, 0, 5), 1.0));
  EXPECT_TRUE(all_equal(base.slice(1, 5, 10), 4.0));
}

TEST_P(Unscale, FindsOverflowsAmongMixedTypesLayoutsAndDevices) {
  const auto make = [&] {
    return std::vector<at::Tensor>{dense(),
                                   column_slice(),
                                   dense().to(at::kHalf),
                                   column_slice().to(at::kBFloat16),
                                   dense().to(at::kDouble),
                                   torch::full({10, 10}, 4.0),
                                   torch::full({10, 10}, 4.0).to(at::kHalf)};
  };
  const std::size_t tensors = make().size();
  for (std::size_t bad = 0; bad <= tensors; ++bad) {  // the last round has none
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& gradient : make()) parameters.push_back(parameter_with_grad(gradient));
    if (bad < tensors) parameters[bad].mutable_grad()[1][1] = kInf;
    torch::optim::SGD optimizer(parameters, 1.0);
    accelerant::detail::GradientChecks checks;
    checks.run(optimizer, full({}, 0.25), Writing::unscaled_values,
               accelerant::detail::Float16Gradients::allowed);
    EXPECT_EQ(checks.flags().size(), on_cuda() ? 2U : 1U);
    int found_devices = 0;
    for (const at::Tensor& flag : checks.flags()) found_devices += flag.item<float>() != 0;
    EXPECT_EQ(found_devices, bad < tensors ? 1 : 0) << "bad gradient " << bad;
    if (bad == tensors) {
      for (const at::Tensor& parameter : parameters) EXPECT_TRUE(all_equal(parameter.grad(), 1.0));
    }
  }
}

TEST_P(Unscale, OverflowSkipsAndBacksOff) {
  for (const double bad : {kInf, -kInf, kNan}) {
    at::Tensor parameter = parameter_with_grad(full({4}, 4.0));
    parameter.mutable_grad()[1] = bad;
    torch::optim::SGD optimizer({parameter}, 1.0);
    GradScaler scaler = started_scaler(device(), 4.0);
    const auto result = scaler.step(optimizer);
    EXPECT_TRUE(result.skipped());
    EXPECT_FALSE(result.loss().defined());
    EXPECT_TRUE(found(scaler, optimizer));
    EXPECT_TRUE(all_equal(parameter, 0.0));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
    EXPECT_EQ(parameter.grad()[0].item<double>(), 1.0);  // finite gradients are still unscaled
    const double kept = parameter.grad()[1].item<double>();
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(kept) : kept == bad);
  }
}

TEST_P(Unscale, HalfGradientsAreRefused) {
  at::Tensor parameter = parameter_with_grad(full({2}, 4.0, at::kHalf));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device());
  EXPECT_EQ(error_of([&] { scaler.unscale_(optimizer); }), "Attempting to unscale FP16 gradients.");
  EXPECT_EQ(error_of([&] { scaler.step(optimizer); }), "Attempting to unscale FP16 gradients.");
  EXPECT_TRUE(all_equal(parameter.grad(), 4.0));
}

TEST_P(Unscale, HalfGradientsWorkWithAnAmpOptimizer) {
  at::Tensor parameter = parameter_with_grad(full({2}, 4.0, at::kHalf));
  FusedAdam optimizer({parameter}, torch::optim::AdamOptions(1.0));
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(parameter.grad(), 1.0));
  EXPECT_LT(parameter[0].item<double>(), 0.0);
}

TEST_P(Unscale, Bfloat16GradientsWorkEverywhere) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0, at::kBFloat16));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(parameter.grad(), 1.0));
  EXPECT_TRUE(all_equal(parameter, -1.0));
}

TEST_P(Unscale, Float64GradientsWork) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0, at::kDouble));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(parameter, -1.0));
}

TEST_P(Unscale, ComplexGradientsAreRefused) {
  at::Tensor parameter = parameter_with_grad(torch::ones({2}, options(at::kComplexFloat)));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device());
  EXPECT_TRUE(contains(error_of([&] { scaler.step(optimizer); }), "ComplexFloat"));
}

at::Tensor sparse_gradient(const std::vector<double>& values, at::TensorOptions options) {
  const at::Tensor indices = torch::tensor({{0, 1, 0}, {0, 1, 0}}, options.dtype(at::kLong));
  return torch::sparse_coo_tensor(indices, torch::tensor(values).to(options), {2, 2}, options);
}

TEST_P(Unscale, SparseFloatStaysUncoalesced) {
  at::Tensor parameter = parameter_with_grad(sparse_gradient({64000, 32, 64000}, options()));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  EXPECT_FALSE(parameter.grad().is_coalesced());
  EXPECT_TRUE(
      torch::equal(parameter.grad()._values().cpu(), torch::tensor({16000.F, 8.F, 16000.F})));
  EXPECT_FALSE(found(scaler, optimizer));
}

TEST_P(Unscale, SparseHalfIsCoalescedBeforeTheCheck) {
  at::Tensor parameter =
      parameter_with_grad(sparse_gradient({64000, 32, 64000}, options(at::kHalf)));
  // A plain check, as on the AMP path; the tests' fused optimizer takes no sparse tensors.
  struct Recorder : torch::optim::SGD, accelerant::AmpOptimizer {
    using SGD::SGD;
    using SGD::step;
    at::Tensor step(const accelerant::AmpStepControls&) override { return {}; }
  } optimizer({parameter}, torch::optim::SGDOptions(1.0));
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(parameter.grad().is_coalesced());
  EXPECT_TRUE(std::isinf(parameter.grad()._values()[0].item<double>()));
}

TEST_P(Unscale, SparseGradientsAreUnscaledAndChecked) {
  for (const double bad : {kInf, kNan}) {
    at::Tensor parameter = parameter_with_grad(sparse_gradient({16, bad, 64}, options()));
    torch::optim::SGD optimizer({parameter}, 1.0);
    GradScaler scaler = started_scaler(device(), 4.0);
    scaler.unscale_(optimizer);
    EXPECT_TRUE(found(scaler, optimizer));
  }
  at::Tensor parameter = parameter_with_grad(sparse_gradient({16, 32, 64}, options()));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  EXPECT_FALSE(found(scaler, optimizer));
  EXPECT_TRUE(torch::equal(parameter.grad().to_dense(),
                           sparse_gradient({16, 32, 64}, options()).to_dense() / 4));
}

TEST_P(Unscale, AnEmptyGradientMayStandBesideANormalOne) {
  at::Tensor empty = parameter_with_grad(full({0}, 0.0));
  at::Tensor normal = parameter_with_grad(full({3}, 8.0));
  torch::optim::SGD optimizer({empty, normal}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  EXPECT_TRUE(all_equal(normal, -2.0));
}

TEST_P(Unscale, ExpandedGradientIsRefused) {
  at::Tensor parameter = parameter_with_grad(full({1}, 4.0).expand({5}));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  try {
    scaler.unscale_(optimizer);
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(contains(error.what_without_backtrace(), "refers to a single memory location"));
  }
}

TEST_P(Unscale, ParametersWithoutGradientsArePassedOver) {
  at::Tensor first = parameter_with_grad(full({2}, 8.0));
  at::Tensor without = full({2}, 5.0).requires_grad_();
  at::Tensor second = parameter_with_grad(full({2}, 8.0));
  torch::optim::SGD optimizer({{torch::optim::OptimizerParamGroup({without, first}),
                                torch::optim::OptimizerParamGroup({second, full({1}, 0)})}},
                              torch::optim::SGDOptions(1.0));
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.step(optimizer);
  EXPECT_TRUE(all_equal(first, -2.0));
  EXPECT_TRUE(all_equal(second, -2.0));
  EXPECT_TRUE(all_equal(without, 5.0));
}

TEST_P(Unscale, AParameterInTwoOptimizersIsRefused) {
  at::Tensor shared = parameter_with_grad(full({2}, 8.0));
  torch::optim::SGD first({shared}, 1.0);
  torch::optim::SGD second({shared}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(first);
  EXPECT_TRUE(contains(error_of([&] { scaler.unscale_(second); }), "unscaled twice"));
  EXPECT_TRUE(all_equal(shared.grad(), 2.0));  // once, not twice
}

TEST_P(Unscale, OverflowByUnscalingIsFound) {
  const std::pair<double, double> cases[] = {{1e-45, 1.0}, {0x1p-100, 0x1p100}};
  for (const auto& [scale, gradient] : cases) {
    at::Tensor parameter = parameter_with_grad(full({2}, gradient));
    torch::optim::SGD optimizer({parameter}, 1.0);
    GradScaler scaler = started_scaler(device(), scale);
    EXPECT_TRUE(scaler.step(optimizer).skipped());
    EXPECT_TRUE(all_equal(parameter, 0.0));

    at::Tensor fused_parameter = parameter_with_grad(full({2}, gradient));
    FusedAdam fused({fused_parameter});
    GradScaler other = started_scaler(device(), scale);
    EXPECT_TRUE(other.step(fused).skipped());
    EXPECT_TRUE(all_equal(fused_parameter, 0.0));
  }
}

TEST_P(Unscale, TheOperationChecksItsArgumentsAndNeverClearsTheFlag) {
  const at::Tensor seven = full({}, 7.0);
  non_finite_check_and_unscale_({}, seven, full({}, 1.0));
  non_finite_check_and_unscale_({full({2}, 1.0)}, seven, full({}, 0.5));
  EXPECT_EQ(seven.item<double>(), 7.0);  // only ever set, never cleared

  const std::vector<at::Tensor> floats{full({2}, 1.0)};
  EXPECT_EQ(
      error_of([&] { non_finite_check_and_unscale_(floats, seven, full({}, 1.0, at::kDouble)); }),
      "inv_scale must be a float tensor.");
  EXPECT_EQ(error_of([&] { non_finite_check_and_unscale_(floats, full({2}, 0), full({}, 1.0)); }),
            "found_inf must be a 1-element tensor.");
  EXPECT_TRUE(contains(error_of([&] { unscale({full({2}, 1, at::kLong)}, 0.5); }), "Long"));

  const std::vector<at::Tensor> mixed{full({2}, 4.0), full({2}, 4.0, at::kHalf)};
  EXPECT_EQ(unscale(mixed, 0.25), 0.0F);
  for (const at::Tensor& gradient : mixed) EXPECT_TRUE(all_equal(gradient, 1.0));
}

TEST(UnscaleOnTwoDevices, GradientsOfTwoDevicesInOneListAreRefused) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(error_of([&] {
              non_finite_check_and_unscale_({torch::ones({2}, at::kCUDA), torch::ones({2})},
                                            torch::zeros({}, at::kCUDA),
                                            torch::ones({}, at::kCUDA));
            }),
            "scaled_grads must be on the same device.");
}

// The path for devices without our own kernels gives the same results as the kernels.
TEST_P(Unscale, FallbackAgreesWithKernels) {
  torch::manual_seed(5);
  for (const double inv_scale : {1.0, 0.25, 1e30}) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const auto writing : {Writing::unscaled_values, Writing::nothing}) {
        at::Tensor first = (torch::randn({33, 7}, options()) * 1e4).to(type);
        first[3][1] = kNan;
        first[4] = kInf;
        const std::vector<at::Tensor> by_kernel{first.clone(), first.t().clone().slice(0, 0, 5)};
        const std::vector<at::Tensor> by_aten{by_kernel[0].clone(), by_kernel[1].clone()};
        const auto run = [&](auto& function, const std::vector<at::Tensor>& gradients) {
          const at::Tensor found_inf = full({}, 0.0);
          const accelerant::detail::Counts counts{torch::zeros({2 + 8}, options()), 2};
          function(gradients, full({}, inv_scale), writing, found_inf, counts);
          EXPECT_EQ(found_inf.item<float>(), 1.0F);
          return counts.rows(2).cpu();
        };
        const at::Tensor expected = run(accelerant::detail::unscale_and_count_by_aten_, by_aten);
        const at::Tensor actual = run(accelerant::detail::unscale_and_count_, by_kernel);
        EXPECT_TRUE(torch::equal(actual, expected)) << actual << expected;
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_TRUE(torch::allclose(by_kernel[i], by_aten[i], 0, 0, /*equal_nan=*/true));
        }
        if (writing == Writing::nothing) {
          EXPECT_TRUE(torch::allclose(by_kernel[0], first, 0, 0, /*equal_nan=*/true));
        }
      }
    }
  }
}

TEST_P(Unscale, ShapesAndStridesSurvive) {
  at::Tensor parameter = parameter_with_grad(full({6, 4}, 4.0).t());
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  EXPECT_EQ(parameter.grad().sizes(), (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(parameter.grad().strides(), (std::vector<int64_t>{1, 4}));
}

}  // namespace
