#include "accelerant/optim/clip_grad.h"

#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::clip_grad_norm_;
using accelerant::clip_grad_value_;
using accelerant::get_total_norm;

class ClipGrad : public OnDevice {};
ON_EVERY_DEVICE(ClipGrad);

TEST_P(ClipGrad, SixteenBitNormsAreMadeInFloat32) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    at::Tensor parameter = parameter_with_grad(full({1000}, 60000.0, type));
    const at::Tensor norm = clip_grad_norm_({parameter}, 1.0);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    const double element = full({}, 60000.0, type).item<double>();
    EXPECT_NEAR(norm.item<double>() / (element * std::sqrt(1000.0)), 1.0, 1e-5);
    EXPECT_NEAR(parameter.grad()[0].item<double>() * std::sqrt(1000.0), 1.0, 1e-2);  // not zero
  }
}

TEST_P(ClipGrad, MixedTypesAndDevices) {
  at::Tensor a = parameter_with_grad(full({9}, 1.0));
  at::Tensor b = parameter_with_grad(full({16}, 1.0, at::kDouble));
  at::Tensor c = parameter_with_grad(torch::full({24}, 1.0, at::kBFloat16));  // on the CPU
  at::Tensor without = full({2}, 1.0).requires_grad_();
  const at::Tensor norm = clip_grad_norm_({a, without, b, c}, 3.5);
  EXPECT_EQ(norm.device(), a.device());
  EXPECT_NEAR(norm.item<double>(), 7.0, 1e-6);
  for (const at::Tensor& clipped : {a, b, c})
    EXPECT_NEAR(clipped.grad()[0].item<double>(), 0.5, 1e-3);
}

TEST_P(ClipGrad, SparseGradients) {
  const at::Tensor indices = torch::tensor({{0, 1, 0}}, options(at::kLong));
  const at::Tensor values = torch::tensor({1.F, 4.F, 2.F}, options());
  at::Tensor parameter =
      parameter_with_grad(torch::sparse_coo_tensor(indices, values, {3}, options()));
  EXPECT_FLOAT_EQ(clip_grad_norm_({parameter}, 2.5).item<float>(),
                  5.0F);  // (3, 4): duplicates summed
  EXPECT_TRUE(torch::allclose(parameter.grad().to_dense().cpu(), torch::tensor({1.5F, 2.0F, 0.F})));
}

TEST_P(ClipGrad, NothingToClip) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<double>(), 0.0);
  EXPECT_EQ(clip_grad_norm_({full({2}, 1.0)}, 1.0).item<double>(), 0.0);
  EXPECT_EQ(get_total_norm({}).item<double>(), 0.0);
  EXPECT_NO_THROW(clip_grad_value_({}, 1.0));
}

TEST_P(ClipGrad, ByValue) {
  at::Tensor parameter =
      parameter_with_grad(torch::tensor({-5.F, 0.5F, 7.F, static_cast<float>(kNan)}, options()));
  clip_grad_value_({parameter}, 1.0);
  EXPECT_TRUE(
      torch::equal(parameter.grad().cpu().narrow(0, 0, 3), torch::tensor({-1.F, 0.5F, 1.F})));
  EXPECT_TRUE(std::isnan(parameter.grad()[3].item<double>()));
}

TEST_P(ClipGrad, NotRecordedByAutograd) {
  at::Tensor parameter = full({2}, 1.0).requires_grad_();
  parameter.mutable_grad() = parameter * 3;  // as after a backward with create_graph
  EXPECT_FALSE(clip_grad_norm_({parameter}, 1.0).requires_grad());
  parameter.mutable_grad().reset();  // otherwise parameter and gradient own each other
}

TEST_P(ClipGrad, UselessLimitsAreRefused) {
  at::Tensor parameter = parameter_with_grad(full({2}, 4.0));
  for (const double bad : {-1.0, kNan}) {
    EXPECT_TRUE(contains(error_of([&] { clip_grad_norm_({parameter}, bad); }), "max_norm"));
    EXPECT_TRUE(contains(error_of([&] { clip_grad_value_({parameter}, bad); }), "clip_value"));
  }
  EXPECT_TRUE(all_equal(parameter.grad(), 4.0));
  clip_grad_norm_({parameter}, kInf);
  EXPECT_TRUE(all_equal(parameter.grad(), 4.0));
}

TEST_P(ClipGrad, WithAGivenNorm) {
  at::Tensor parameter = parameter_with_grad(full({4}, 1.0));
  accelerant::clip_grads_with_norm_({parameter}, 1.0, full({}, 4.0));
  EXPECT_NEAR(parameter.grad()[0].item<double>(), 0.25, 1e-6);
}

}  // namespace
