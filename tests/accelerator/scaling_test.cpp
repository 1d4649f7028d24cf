// Float16 loops: when gradients are unscaled, steps skipped and the scale updated.
#include <gtest/gtest.h>

#include <cmath>

#include "accelerator/helpers.h"
#include "support/fused_adam.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;

TEST(Scaling, GradientsAreUnscaledOncePerWindow) {
  OneWeight t(scaled_options(2), 0.0);
  for (int i = 0; i < 2; ++i) {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(8);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto norm = t.accelerator.clip_grad_norm_(t.model, 100.0);
      EXPECT_EQ(norm.has_value(), i == 1);
      if (norm) {
        EXPECT_EQ(norm->item<float>(), 8.0F);
      }
    }
    t.accelerator.unscale_gradients();
    t.optimizer.step();
  }
  EXPECT_EQ(t.gradient(), 8.0F);
}

TEST(Scaling, TheNormIsOfUnscaledGradientsAndInfiniteOnOverflow) {
  OneWeight t(scaled_options());
  t.backward(3);
  EXPECT_EQ(t.accelerator.clip_grad_norm_(t.model, 1e9)->item<float>(), 3.0F);
  EXPECT_FALSE(t.optimizer.step().skipped());
  t.optimizer.zero_grad();
  t.backward(kInfinity);
  EXPECT_TRUE(std::isinf(t.accelerator.clip_grad_norm_(t.model, 1.0)->item<float>()));
  EXPECT_TRUE(t.optimizer.step().skipped());
  EXPECT_EQ(t.weight(), -2.0F);
}

TEST(Scaling, ASkippedStepChangesNothingButTheScale) {
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

TEST(Scaling, SkipsAreSeenForOptimizersThatDecideOnTheDeviceAndStayUntilTheNextStep) {
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

TEST(Scaling, OneScalerServesSeveralOptimizersOncePerWindow) {
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
    // Outside a scope the last update happens at the next backward.
    if (!scoped) accelerator.backward(ma(scalar(0)).mean());
    EXPECT_EQ(accelerator.scaler().status().updates, 2);
    EXPECT_EQ(accelerator.scaler().get_scale(), 4096);
  }
}

TEST(Scaling, TheScaleStaysWhileAnyWindowGathers) {
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

TEST(Scaling, AWindowLeftHalfWayDoesNotHoldTheScalerForGood) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2, 1));
  auto [ma, mb, oa] = accelerator.prepare(a, b, sgd_a);
  {
    const auto window = accelerator.accumulate(mb);
    accelerator.backward(mb(scalar(1)).mean());
  }  // never continued
  for (int i = 0; i < 4; ++i) {
    const auto window = accelerator.accumulate(ma);
    accelerator.backward(ma(scalar(1)).mean());
    EXPECT_NO_THROW(oa.step());
    oa.zero_grad();
  }
  EXPECT_EQ(accelerator.scaler().status().updates, 1);
}

}  // namespace
}  // namespace accelerator_test
