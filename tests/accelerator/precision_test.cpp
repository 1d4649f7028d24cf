// Mixed precision through the Accelerator.
#include <gtest/gtest.h>

#include <map>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/on_device.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;

struct Output {
  torch::Tensor logits;
  std::optional<torch::Tensor> mask;
  std::map<std::string, std::vector<torch::Tensor>> more;
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.logits);
    visit(self.mask);
    visit(self.more);
  }
};

struct StructuredImpl : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(4, 4))};
  torch::ScalarType inside = torch::kFloat32;

  Output forward(const torch::Tensor& x) {
    const auto y = linear(x);
    inside = y.scalar_type();
    return {.logits = y, .mask = y > 0, .more = {{"a", {y, y.argmax(1)}}}};
  }
};
TORCH_MODULE(Structured);

class AcceleratorPrecision : public OnDevice {
 protected:
  accelerant::AcceleratorOptions with(Precision precision) const {
    return {.device = device(), .mixed_precision = precision};
  }
};

TEST_P(AcceleratorPrecision, OutputsComeBackInFloat32WithTheirStructure) {
  for (const auto precision : {Precision::no, Precision::fp16, Precision::bf16}) {
    Structured net;
    Accelerator accelerator(with(precision));
    const auto model = accelerator.prepare(net);
    const Output output = model(torch::randn({3, 4}, options()));
    const auto type = precision == Precision::no     ? torch::kFloat32
                      : precision == Precision::fp16 ? torch::kFloat16
                                                     : torch::kBFloat16;
    EXPECT_EQ(net->inside, type);
    EXPECT_EQ(output.logits.scalar_type(), torch::kFloat32);
    EXPECT_EQ(output.more.at("a")[0].scalar_type(), torch::kFloat32);
    EXPECT_EQ(output.more.at("a")[1].scalar_type(), torch::kLong);
    EXPECT_EQ(output.mask->scalar_type(), torch::kBool);
    EXPECT_EQ(net->parameters().front().scalar_type(), torch::kFloat32);
  }
}

TEST_P(AcceleratorPrecision, OutputsMayStayIn16Bits) {
  for (const auto precision : {Precision::no, Precision::fp16, Precision::bf16}) {
    Structured net;
    Accelerator accelerator(with(precision));
    const auto model = accelerator.prepare_model(net, {.float32_outputs = false});
    const Output output = model(torch::randn({3, 4}, options()));
    const auto type = precision == Precision::no     ? torch::kFloat32
                      : precision == Precision::fp16 ? torch::kFloat16
                                                     : torch::kBFloat16;
    EXPECT_EQ(output.logits.scalar_type(), type);
    accelerator.backward(output.logits.to(torch::kFloat32).sum());
    EXPECT_EQ(net->parameters().front().grad().scalar_type(), torch::kFloat32);
  }
}

TEST_P(AcceleratorPrecision, AutocastScopesReachWhatIsOutsideOfModels) {
  const auto a = torch::randn({4, 4}, options());
  Accelerator bf16(with(Precision::bf16));
  {
    const auto scope = bf16.autocast();
    EXPECT_EQ(a.matmul(a).scalar_type(), torch::kBFloat16);
    const auto off = bf16.autocast({.enabled = false});
    EXPECT_EQ(a.matmul(a).scalar_type(), torch::kFloat32);
  }
  EXPECT_EQ(a.matmul(a).scalar_type(), torch::kFloat32);
  // Without mixed precision the scope leaves the program's own scope alone.
  Accelerator plain(with(Precision::no));
  const accelerant::AutocastGuard own({device().type(), torch::kBFloat16});
  const auto scope = plain.autocast();
  EXPECT_EQ(a.matmul(a).scalar_type(), torch::kBFloat16);
}

TEST_P(AcceleratorPrecision, TrainableFloat16ParametersAreRefusedByName) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  net[1]->to(torch::kFloat16);
  Accelerator accelerator(with(Precision::fp16));
  const auto error = error_of([&] { accelerator.prepare(net); });
  EXPECT_TRUE(contains(error, "got 1.weight, 1.bias"));
  EXPECT_TRUE(contains(error, ".master_weights = true"));
  // Frozen parameters, models that are only evaluated, and other precisions are fine.
  EXPECT_NO_THROW(Accelerator(with(Precision::bf16)).prepare(net));
  EXPECT_NO_THROW(accelerator.prepare_model(net, {.evaluation_mode = true}));
  for (auto& parameter : net[1]->parameters()) parameter.requires_grad_(false);
  EXPECT_NO_THROW(Accelerator(with(Precision::fp16)).prepare(net));
}

TEST_P(AcceleratorPrecision, MasterWeightsMakeThemFloat32) {
  torch::nn::Linear net(4, 4);
  net->to(torch::kFloat16);
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  const auto before = net->weight.detach().to(torch::kFloat32).to(device());
  auto given = with(Precision::fp16);
  given.scaler = {.init_scale = 128};
  Accelerator accelerator(given);
  const auto model = accelerator.prepare_model(net, {.master_weights = true});
  const auto optimizer = accelerator.prepare(sgd);
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat32);
  EXPECT_TRUE(net->weight.equal(before));
  accelerator.backward(model(torch::ones({2, 4}, options())).sum());
  EXPECT_FALSE(optimizer.step().skipped());
  EXPECT_FALSE(net->weight.equal(before));
}

TEST_P(AcceleratorPrecision, ClippingAndLookingAtGradientsUndoTheScaleOnce) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto given = with(Precision::fp16);
  given.scaler = {.init_scale = 128};
  Accelerator accelerator(given);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(full({1}, 8)).sum());
  EXPECT_EQ(net->w.grad().item<float>(), 8.0F * 128);
  accelerator.unscale_gradients();
  accelerator.unscale_gradients(optimizer);
  EXPECT_EQ(net->w.grad().item<float>(), 8.0F);
  EXPECT_FLOAT_EQ(accelerator.clip_grad_norm_(model, 2.0)->item<float>(), 8.0F);
  EXPECT_FLOAT_EQ(accelerator.clip_grad_norm_(model, 2.0)->item<float>(), 2.0F);
  accelerator.clip_grad_value_(model, 0.5);
  EXPECT_FALSE(optimizer.step().skipped());
  EXPECT_FLOAT_EQ(net->w.item<float>(), 0.5F);
}

TEST_P(AcceleratorPrecision, WhatIsUnscaledWaitsForItsStep) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 1.0);
  torch::optim::SGD sgd_b(b->parameters(), 1.0);
  auto given = with(Precision::fp16);
  given.scaler = {.init_scale = 128, .growth_interval = 1};
  Accelerator accelerator(given);
  auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
  // Clipped inside the scope, stepped outside.
  {
    const auto window = accelerator.accumulate(ma);
    accelerator.backward(ma(full({1}, 4)).sum());
    accelerator.clip_grad_norm_(ma, 1e9);
  }
  oa.step();
  oa.zero_grad();
  EXPECT_EQ(a->w.item<float>(), -3.0F);
  // Another backward in between.
  accelerator.backward(ma(full({1}, 4)).sum());
  accelerator.clip_grad_norm_(ma, 1e9);
  accelerator.backward(mb(full({1}, 2)).sum());
  oa.step();
  ob.step();
  oa.zero_grad();
  ob.zero_grad();
  EXPECT_EQ(a->w.item<float>(), -7.0F);
  EXPECT_EQ(b->w.item<float>(), -1.0F);
  // Unscaled, inspected, and not used for a step.
  accelerator.backward(ma(full({1}, 4)).sum());
  accelerator.unscale_gradients(oa);
  oa.zero_grad();
  accelerator.backward(ma(full({1}, 4)).sum());
  EXPECT_EQ(accelerator.clip_grad_norm_(ma, 1e9)->item<float>(), 4.0F);
  EXPECT_EQ(accelerator.scaler().get_scale(), 128 * 8);  // three iterations have ended
}

TEST_P(AcceleratorPrecision, TheScalerGrowsAndBacksOffWithTheLoop) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto given = with(Precision::fp16);
  given.scaler = {.init_scale = 1024, .growth_interval = 2};
  Accelerator accelerator(given);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto update = [&, &m = model, &o = optimizer](double x) {
    const auto window = accelerator.accumulate(m);
    accelerator.backward(m(full({1}, x)).sum());
    const bool skipped = o.step().skipped();
    o.zero_grad();
    return skipped;
  };
  EXPECT_FALSE(update(1));
  EXPECT_FALSE(update(1));
  EXPECT_EQ(accelerator.scaler().get_scale(), 2048);
  EXPECT_TRUE(update(kInfinity));
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(accelerator.scaler().get_scale(), 1024);
  EXPECT_FALSE(update(1));
  EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
  accelerator.scaler().get_scale();  // waits, so that the status includes the last update
  EXPECT_EQ(accelerator.scaler().status().updates, 4);
}

TEST_P(AcceleratorPrecision, OverflowReportsNameTheParametersOfEachModel) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd(b->parameters(), 0.1);
  Accelerator accelerator(with(Precision::fp16));
  auto [ma, mb, optimizer] = accelerator.prepare(a, b, sgd);
  accelerator.backward(mb(full({1}, kInfinity)).sum());
  EXPECT_TRUE(optimizer.step().skipped());
  const auto report = accelerator.scaler().overflow_report();
  ASSERT_EQ(report.parameters.size(), 1U);
  EXPECT_EQ(report.parameters.front().name, "model_1.w");
}

TEST_P(AcceleratorPrecision, AModelMovedAfterwardsIsAnErrorNotFloat32) {
  if (!on_cuda()) GTEST_SKIP() << "needs two kinds of devices";
  torch::nn::Linear net(4, 4);
  Accelerator accelerator(with(Precision::fp16));
  const auto model = accelerator.prepare(net);
  net->to(torch::kCPU);
  EXPECT_TRUE(contains(error_of([&] {
                         model(torch::ones({1, 4}));
                       }),
                       "wrong device for mixed precision"));
}

ON_EVERY_DEVICE(AcceleratorPrecision);

TEST(PrecisionOnTheCpu, Float16ParametersAreAnErrorAndBfloat16NeverScales) {
  Scale net;
  net->to(torch::kFloat16);
  Accelerator fp16(on_cpu(Precision::fp16));
  EXPECT_TRUE(contains(error_of([&] { fp16.prepare(net); }), "got w;"));
  Accelerator bf16(on_cpu(Precision::bf16));
  const auto model = bf16.prepare(net);
  bf16.backward(model(scalar(3)).mean());
  EXPECT_EQ(net->w.grad().item<float>(), 3.0F);
}

TEST(PrecisionOnTheCpu, CopiesOfWeightsDoNotOutliveAStep) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu(Precision::bf16));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto scope = accelerator.autocast();  // around several iterations
  const auto x = torch::ones({1, 1});
  const float before = model(x).item<float>();
  accelerator.backward(model(x).sum());
  optimizer.step();
  EXPECT_NEAR(model(x).item<float>(), before - 1.0F, 2e-2F);
}

TEST(PrecisionOnTheCpu, AForwardWithoutGradientsDoesNotSpoilTheNextOne) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(on_cpu(Precision::bf16));
  const auto model = accelerator.prepare(net);
  const auto scope = accelerator.autocast();
  {
    const torch::NoGradGuard no_grad;
    model(torch::ones({1, 2}));
  }
  accelerator.backward(model(torch::ones({1, 2})).sum());
  EXPECT_TRUE(net->weight.grad().defined());
}

TEST(PrecisionOnTheCpu, Fp16ReallyIsFp16) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(on_cpu(Precision::fp16));
  const auto model = accelerator.prepare(net);
  EXPECT_TRUE(accelerator.scaler().is_enabled());
  const auto x = torch::full({1, 2}, 1.0F / 3);
  EXPECT_FALSE(model(x).equal(net(x)));
  EXPECT_TRUE(torch::allclose(model(x), net(x), 1e-2, 1e-2));
}

}  // namespace
}  // namespace accelerator_test
