// Training loops with calls in an unusual order, or without some calls: the updates stay right.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;

// The scale grows at every update, so that mixing scales shows.
accelerant::AcceleratorOptions growing_scale(int64_t steps = 1) {
  auto options = on_cpu(Precision::fp16, steps);
  options.scaler = {.init_scale = 8, .growth_interval = 1};
  return options;
}

TEST(LoopOrder, SeveralStepsInOneScope) {
  OneWeight t(growing_scale());
  const auto window = t.accelerator.accumulate(t.model);
  for (int i = 0; i < 3; ++i) {
    t.backward(1);
    t.optimizer.step();
    t.optimizer.zero_grad();
    EXPECT_EQ(t.weight(), -static_cast<float>(i));
  }
}

TEST(LoopOrder, AnOverflowBetweenTwoStepsOfOneScope) {
  OneWeight t(growing_scale());
  const auto window = t.accelerator.accumulate(t.model);
  t.backward(kInfinity);
  EXPECT_TRUE(t.optimizer.step().skipped());
  t.optimizer.zero_grad();
  t.backward(1);
  EXPECT_FALSE(t.optimizer.step().skipped());
  EXPECT_EQ(t.weight(), 0.0F);
}

TEST(LoopOrder, GradientsThatWaitFollowTheScale) {
  OneWeight a(growing_scale());
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = a.accelerator.prepare(net, sgd);
  a.accelerator.backward((a.model(scalar(1)) + model(scalar(2))).sum());
  a.optimizer.step();
  a.accelerator.backward(model(scalar(4)).sum());  // the scale is updated here
  optimizer.step();
  EXPECT_EQ(a.weight(), 0.0F);
  EXPECT_EQ(net->w.item<float>(), 1.0F - 6.0F);
}

TEST(LoopOrder, AHalfOpenWindowFollowsTheScaleOfOthers) {
  OneWeight a(growing_scale(2));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = a.accelerator.prepare(net, sgd);
  {
    const auto window = a.accelerator.accumulate(a.model);
    a.backward(2);
  }
  for (int i = 0; i < 8; ++i) {
    const auto window = a.accelerator.accumulate(model);
    a.accelerator.backward(model(scalar(1)).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  {
    const auto window = a.accelerator.accumulate(a.model);
    a.backward(4);
    a.optimizer.step();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F - 4.0F);
  EXPECT_EQ(a.weight(), 1.0F - 3.0F);
}

TEST(LoopOrder, AnExceptionAfterClippingGivesTheWindowUp) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    auto options = growing_scale(2);
    options.mixed_precision = precision;
    OneWeight t(options);
    const auto micro_step = [&](double x, bool fails) {
      const auto window = t.accelerator.accumulate(t.model);
      t.accelerator.backward(t.model(scalar(x)).sum(), x > 1 ? 3 : 1);
      t.accelerator.clip_grad_norm_(t.model, 1e9);
      if (fails) throw std::runtime_error("after clipping");
      t.optimizer.step();
      t.optimizer.zero_grad();
    };
    micro_step(1, false);
    EXPECT_THROW(micro_step(6, true), std::runtime_error);
    EXPECT_FALSE(t.net->w.grad().defined());
    micro_step(6, false);
    micro_step(6, false);
    EXPECT_FLOAT_EQ(t.weight(), 1.0F - 2.0F);
  }
}

TEST(LoopOrder, EachOptimizerKeepsItsGradientsInASharedWindow) {
  OneWeight d(on_cpu(Precision::no, 2));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [g, optimizer] = d.accelerator.prepare(net, sgd);
  for (int i = 0; i < 4; ++i) {
    const auto window = d.accelerator.accumulate(g, d.model);
    d.optimizer.zero_grad();
    d.backward(2);
    d.optimizer.step();
    optimizer.zero_grad();  // after a backward that is not its own
    d.accelerator.backward(g(scalar(4)).sum());
    optimizer.step();
  }
  EXPECT_EQ(d.weight(), 1.0F - 2 * 2.0F);
  EXPECT_EQ(net->w.item<float>(), 1.0F - 2 * 4.0F);
}

TEST(LoopOrder, GradientsClearedPastThePreparedOptimizer) {
  OneWeight t(growing_scale());
  t.backward(1);
  t.accelerator.clip_grad_norm_(t.model, 1e9);
  t.net->zero_grad();
  t.backward(1);
  t.optimizer.step();
  EXPECT_EQ(t.weight(), 0.0F);
}

TEST(LoopOrder, SkippedBatchesDoNotWeighDownTheirWindow) {
  for (const bool at_the_end : {false, true}) {
    OneWeight t(on_cpu(Precision::no, 2));
    for (const double x : {3.0, -1.0, 3.0, 3.0}) {
      const auto window = t.accelerator.accumulate(t.model);
      const bool bad = at_the_end ? x < 0 : window.micro_step() == 1;
      if (bad) continue;
      t.backward(std::abs(x));
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
    // One update from three good batches, or two updates from one batch each.
    EXPECT_FLOAT_EQ(t.weight(), at_the_end ? 1.0F - 3.0F : 1.0F - 1.0F - 3.0F);
  }
}

TEST(LoopOrder, DroppingGradientsInsideAScopeStartsTheWindowOver) {
  OneWeight t(on_cpu(Precision::no, 2));
  {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(100);
  }
  {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(100);
    t.accelerator.drop_gradients();
    EXPECT_EQ(window.micro_step(), 1);
    EXPECT_FALSE(window.sync_gradients());
    t.backward(2);
    t.optimizer.step();
  }
  try {
    const auto window = t.accelerator.accumulate(t.model);
    t.accelerator.drop_gradients();
    throw std::runtime_error("after dropping");
  } catch (const std::runtime_error&) {
  }
  for (int i = 0; i < 2; ++i) {
    const auto window = t.accelerator.accumulate(t.model);
    EXPECT_EQ(window.micro_step(), i + 1);
    t.backward(3);
    t.optimizer.step();
  }
  EXPECT_FLOAT_EQ(t.weight(), 1.0F - 3.0F);
}

TEST(LoopOrder, AnExceptionBetweenStepAndZeroGrad) {
  OneWeight t(on_cpu());
  for (const bool fails : {true, false}) {
    try {
      const auto window = t.accelerator.accumulate(t.model);
      t.backward(1);
      t.optimizer.step();
      if (fails) throw std::runtime_error("no space for the log");
      t.optimizer.zero_grad();
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_EQ(t.weight(), -1.0F);
}

TEST(LoopOrder, AWindowDoesNotReachWhatComesAfterIt) {
  OneWeight t(on_cpu(Precision::no, 2));
  for (const int64_t items : {1, 3}) {
    const auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.model(scalar(1)).sum(), items);
  }
  t.net->zero_grad();
  t.backward(1);
  t.optimizer.step();
  EXPECT_EQ(t.weight(), 0.0F);
}

TEST(LoopOrder, GradientsOfNoPreparedOptimizerCannotBeClippedUnderFp16) {
  Scale net;
  Accelerator accelerator(growing_scale());
  const auto model = accelerator.prepare(net);
  accelerator.backward(model(scalar(1)).sum());
  EXPECT_TRUE(contains(error_of([&] { accelerator.clip_grad_norm_(model, 1.0); }),
                       "that no prepared optimizer owns"));
}

TEST(LoopOrder, AnOptimizerOutlivesItsModelAndItsWindow) {
  Accelerator accelerator(on_cpu(Precision::no, 2));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const auto optimizer = accelerator.prepare(sgd);
  for (int i = 0; i < 2; ++i) {
    const auto model = accelerator.prepare(net);
    const auto window = accelerator.accumulate(model);
    EXPECT_EQ(window.micro_step(), 1);  // the previous model's window is gone with it
    accelerator.backward(model(scalar(1)).sum());
  }
  optimizer.zero_grad();  // no longer waits for a window
  const auto model = accelerator.prepare(net);
  for (const double x : {2.0, 4.0}) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(x)).sum());
    optimizer.step();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
}

TEST(LoopOrder, ALooseOptimizerDoesNotStandInTheWayOfTwoWindows) {
  OneWeight a(on_cpu(Precision::no, 2));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [b, optimizer] = a.accelerator.prepare(net, sgd);
  const auto picture = torch::zeros({1}).requires_grad_();
  torch::optim::SGD over_picture({picture}, 1.0);
  const auto loose = a.accelerator.prepare_optimizer(over_picture, {.loose_parameters = true});
  for (int i = 0; i < 2; ++i) {
    {
      const auto window = a.accelerator.accumulate(a.model);
      a.accelerator.backward((a.model(scalar(1)) + 3 * picture).sum());
      a.optimizer.step();
      loose.step();
    }
    const auto window = a.accelerator.accumulate(b);
    a.accelerator.backward(b(scalar(2)).sum());
    optimizer.step();
  }
  EXPECT_EQ(a.weight(), 1.0F - 1.0F);
  EXPECT_EQ(picture.item<float>(), -3.0F);
  EXPECT_EQ(net->w.item<float>(), 1.0F - 2.0F);
}

}  // namespace
}  // namespace accelerator_test
