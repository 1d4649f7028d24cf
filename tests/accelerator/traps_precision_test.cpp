// Behaviours that re-implementations of Accelerate tend to get wrong, as far as they concern one
// process. The numbers are those of the list this library was designed against; gaps are rows about
// several processes or about checkpoints.
// Here: mixed precision.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

TEST(Traps, Trap12GradientsAreUnscaledOncePerWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 2; ++i) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(8)).mean());
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto norm = accelerator.clip_grad_norm_(model, 100.0);
      EXPECT_EQ(norm.has_value(), i == 1);
      if (norm) {
        EXPECT_EQ(norm->item<float>(), 8.0F);
      }
    }
    accelerator.unscale_gradients();
    optimizer.step();
  }
  EXPECT_EQ(net->w.grad().item<float>(), 8.0F);
}

TEST(Traps, Trap13TheNormIsOfUnscaledGradientsAndInfiniteOnOverflow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(scaled_options());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(scalar(3)).mean());
  EXPECT_EQ(accelerator.clip_grad_norm_(model, 1e9)->item<float>(), 3.0F);
  EXPECT_FALSE(optimizer.step().skipped());
  optimizer.zero_grad();
  accelerator.backward(model(scalar(kInfinity)).mean());
  EXPECT_TRUE(std::isinf(accelerator.clip_grad_norm_(model, 1.0)->item<float>()));
  EXPECT_TRUE(optimizer.step().skipped());
  EXPECT_EQ(net->w.item<float>(), -2.0F);
}

TEST(Traps, Trap14ASkippedStepChangesNothingButTheScale) {
  Scale net;
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  auto decay = accelerant::optim::step_decay(adamw, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(scaled_options(1, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, decay);
  const auto update = [&, &m = model, &o = optimizer, &s = scheduler](double x) {
    const auto window = accelerator.accumulate(m);
    accelerator.backward(m(scalar(x)).mean());
    o.step();
    s.step();
    o.zero_grad();
  };
  update(1);
  const auto& state =
      static_cast<torch::optim::AdamWParamState&>(*adamw.state().at(net->w.unsafeGetTensorImpl()));
  const float weight = net->w.item<float>();
  const float moment = state.exp_avg().item<float>();
  update(kInfinity);
  EXPECT_EQ(net->w.item<float>(), weight);
  EXPECT_EQ(state.exp_avg().item<float>(), moment);
  optimizer.sync();
  EXPECT_EQ(state.step(), 1);
  EXPECT_EQ(decay.last_step(), 1);
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(accelerator.scaler().get_scale(), 512);
  update(1);
  EXPECT_EQ(accelerator.scaler().get_scale(), 512);
  update(1);
  EXPECT_EQ(accelerator.scaler().get_scale(), 1024);
  optimizer.sync();
  EXPECT_EQ(state.step(), 3);
  EXPECT_EQ(decay.last_step(), 3);
}

TEST(Traps, Trap15SkipsAreSeenForOptimizersThatDecideOnTheDeviceAndStayUntilTheNextStep) {
  Scale net;
  FusedAdam adam(net->parameters(), 0.1);
  auto decay = accelerant::optim::step_decay(adam, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(scaled_options(2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, decay);
  const auto micro_step = [&, &m = model, &o = optimizer, &s = scheduler](double x) {
    const auto window = accelerator.accumulate(m);
    accelerator.backward(m(scalar(x)).mean());
    o.step();
    s.step();
    o.zero_grad();
  };
  micro_step(1);
  EXPECT_FALSE(optimizer.step_was_skipped());
  micro_step(kInfinity);
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(decay.last_step(), 0);
  micro_step(1);
  EXPECT_TRUE(optimizer.step_was_skipped());  // no step has been executed since
  micro_step(1);
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_EQ(decay.last_step(), 1);
}

TEST(Traps, Trap17OneScalerServesSeveralOptimizersOncePerWindow) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 1.0);
  torch::optim::SGD sgd_b(b->parameters(), 1.0);
  for (const bool scoped : {true, false}) {
    Accelerator accelerator(scaled_options(1, 1));
    auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
    const float a_before = a->w.item<float>();
    const float b_before = b->w.item<float>();
    const auto iteration = [&, &ma = ma, &mb = mb, &oa = oa, &ob = ob] {
      accelerator.backward((ma(scalar(2)) + mb(scalar(3))).mean());
      accelerator.clip_grad_norm_(ma, 100);
      accelerator.clip_grad_norm_(mb, 100);
      oa.step();
      ob.step();
      oa.zero_grad();
      ob.zero_grad();
    };
    for (int i = 0; i < 2; ++i) {
      if (scoped) {
        const auto window = accelerator.accumulate(ma, mb);
        iteration();
      } else {
        iteration();
      }
    }
    EXPECT_EQ(a->w.item<float>(), a_before - 4.0F);
    EXPECT_EQ(b->w.item<float>(), b_before - 6.0F);
    // Outside of a scope the last update comes with the next backward.
    if (!scoped) accelerator.backward(ma(scalar(0)).mean());
    EXPECT_EQ(accelerator.scaler().status().updates, 2);
    EXPECT_EQ(accelerator.scaler().get_scale(), 4096);
  }
}

TEST(Traps, Trap18TheScaleStaysWhileAnyWindowGathers) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  torch::optim::SGD sgd_b(b->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2, 1));  // grows at every update
  auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
  const auto micro_step = [&](const auto& model, const auto& optimizer) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    accelerator.unscale_gradients(optimizer);
    optimizer.step();
  };
  micro_step(ma, oa);
  micro_step(mb, ob);
  micro_step(ma, oa);  // complete, but the window of b is not
  EXPECT_EQ(accelerator.scaler().get_scale(), 1024);
  micro_step(mb, ob);
  EXPECT_EQ(b->w.grad().item<float>(), 4.0F);
  EXPECT_EQ(accelerator.scaler().get_scale(), 2048);
}

TEST(Traps, Trap18AWindowLeftHalfWayDoesNotHoldTheScalerForGood) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2, 1));
  auto [ma, mb, oa] = accelerator.prepare(a, b, sgd_a);
  {
    const auto window = accelerator.accumulate(mb);
    accelerator.backward(mb(scalar(1)).mean());
  }  // and never again
  for (int i = 0; i < 4; ++i) {
    const auto window = accelerator.accumulate(ma);
    accelerator.backward(ma(scalar(1)).mean());
    EXPECT_NO_THROW(oa.step());
    oa.zero_grad();
  }
  EXPECT_EQ(accelerator.scaler().status().updates, 1);
}

TEST(Traps, Trap19Float16ParametersAreAnErrorAndBfloat16NeverScales) {
  Scale net;
  net->to(torch::kFloat16);
  Accelerator fp16(on_cpu(Precision::fp16));
  EXPECT_TRUE(contains(error_of([&] { fp16.prepare(net); }), "got w;"));
  Accelerator bf16(on_cpu(Precision::bf16));
  const auto model = bf16.prepare(net);
  bf16.backward(model(scalar(3)).mean());
  EXPECT_EQ(net->w.grad().item<float>(), 3.0F);
}

TEST(Traps, Trap20CopiesOfWeightsDoNotOutliveAStep) {
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

TEST(Traps, Trap21AForwardWithoutGradientsDoesNotSpoilTheNextOne) {
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

TEST(Traps, Trap22Fp16OnTheCpuReallyIsFp16) {
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
