// GradScaler: scale().
#include <accelerant/amp/grad_scaler.h>

#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;

class Scale : public OnDevice {
 protected:
  GradScaler make(double init_scale) const {
    return GradScaler({.device = GetParam(), .init_scale = init_scale});
  }
};
ON_EVERY_DEVICE(Scale);

TEST_P(Scale, MultipliesOnTheTensorsDevice) {
  GradScaler scaler = make(2.0);
  const at::Tensor scaled = scaler.scale(full({}, 4.0));
  EXPECT_EQ(scaled.item<double>(), 8.0);
  EXPECT_EQ(scaled.device(), full({}, 0).device());
}

TEST_P(Scale, AutogradFlowsThrough) {
  GradScaler scaler = make(8.0);
  const at::Tensor x = full({}, 3.0).requires_grad_();
  scaler.scale(x * x).backward();
  EXPECT_EQ(x.grad().item<double>(), 48.0);
}

TEST_P(Scale, NestedOutputsKeepTheirStructure) {
  GradScaler scaler = make(2.0);
  const at::Tensor t0 = full({}, 4.0);
  const at::Tensor t1 = torch::full({}, 4.0);  // on the CPU, so CUDA runs see two devices
  using Inner = std::tuple<at::Tensor, at::Tensor>;
  const auto scaled = scaler.scale(
      std::tuple<at::Tensor, Inner, std::vector<Inner>>{t1, {t0, t1}, {{t0, t1}, {t1, t0}}});
  int tensors = 0;
  accelerant::visit_tensors(scaled, [&](const at::Tensor& tensor) {
    EXPECT_EQ(tensor.item<double>(), 8.0);
    ++tensors;
  });
  EXPECT_EQ(tensors, 7);
  EXPECT_EQ(std::get<0>(std::get<1>(scaled)).device(), t0.device());
  EXPECT_TRUE(std::get<0>(scaled).is_cpu());
}

TEST_P(Scale, ZeroDimensionalHalfBecomesFloat) {
  const at::Tensor scaled = make(65536).scale(full({}, 2.0, at::kHalf));
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 131072.0);
}

TEST_P(Scale, OneElementHalfDoesNotOverflow) {
  const at::Tensor loss = full({1}, 2.0, at::kHalf).requires_grad_();
  const at::Tensor scaled = make(65536).scale(loss);
  EXPECT_EQ(scaled.scalar_type(), at::kFloat);
  EXPECT_EQ(scaled.item<double>(), 131072.0);
  make(4.0).scale(loss).backward();
  EXPECT_EQ(loss.grad().scalar_type(), at::kHalf);
  EXPECT_EQ(loss.grad().item<double>(), 4.0);
}

TEST_P(Scale, OneDimensionalBfloat16StaysBfloat16) {
  const at::Tensor scaled = make(65536).scale(full({1}, 2.0, at::kBFloat16));
  EXPECT_EQ(scaled.scalar_type(), at::kBFloat16);
  EXPECT_EQ(scaled.item<double>(), 131072.0);
}

TEST_P(Scale, EmptyListInitialisesNothing) {
  GradScaler scaler = make(2.0);
  EXPECT_TRUE(scaler.scale(std::vector<at::Tensor>{}).empty());
  torch::optim::SGD optimizer({parameter_with_grad(full({1}, 1.0))}, 1.0);
  EXPECT_TRUE(contains(error_of([&] { scaler.unscale_(optimizer); }), "_scale is None"));
}

// Anything but tensors does not compile; these check the rule behind the message.
static_assert(!accelerant::NestedTensors<float>);
static_assert(!accelerant::NestedTensors<std::vector<std::string>>);
static_assert(!accelerant::NestedTensors<std::tuple<at::Tensor, int>>);
static_assert(accelerant::NestedTensors<std::map<std::string, std::optional<at::Tensor>>>);

TEST_P(Scale, UndefinedTensorIsRefused) {
  GradScaler scaler = make(2.0);
  EXPECT_EQ(error_of([&] { scaler.scale(at::Tensor()); }),
            "outputs must be a Tensor or an iterable of Tensors");
}

TEST_P(Scale, LossMayBeOnAnotherDeviceThanTheScale) {
  GradScaler scaler = make(2.0);
  scaler.scale(torch::ones({}));  // the scale lives on the CPU now
  const at::Tensor scaled = scaler.scale(full({}, 4.0));
  EXPECT_EQ(scaled.item<double>(), 8.0);
  EXPECT_EQ(scaled.device(), full({}, 0).device());
}

}  // namespace
