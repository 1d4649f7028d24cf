// Gradients that are inf or nan: AcceleratorOptions::nonfinite in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "accelerator/guarded_training.h"
#include "accelerator/run_anew_backend.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/on_device.h"
#include "support/temp_folder.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;

constexpr Precision kPrecisions[] = {Precision::no, Precision::bf16, Precision::fp16};

class NonfiniteOn : public OnDevice {
 protected:
  accelerant::AcceleratorOptions with(Precision precision, Nonfinite nonfinite,
                                      int64_t steps = 1) const {
    auto options = guarded(precision, nonfinite, steps);
    options.device = device();
    return options;
  }

  // Calls f for all kinds of trainings.
  void for_all_kinds(Nonfinite nonfinite, const std::function<void(const GuardedSetup&)>& f) const {
    for (const Precision precision : kPrecisions) {
      for (const bool fused : {true, false}) {
        for (const int64_t steps : {1, 3}) {
          for (const bool clips : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << "precision " << static_cast<int>(precision) << ", fused " << fused
                         << ", steps " << steps << ", clips " << clips);
            GuardedSetup setup{.options = with(precision, nonfinite, steps), .clips = clips};
            setup.options.fused = fused;
            f(setup);
          }
        }
      }
    }
  }
};

TEST_P(NonfiniteOn, SkippedUpdatesLeaveNoTrace) {
  for_all_kinds(Nonfinite::skip, [](const GuardedSetup& setup) {
    GuardedTraining training(setup);
    training.train();
    const auto expected = trained_without_bad_updates(setup);
    expect_equal(training.state(), expected->state());
    EXPECT_EQ(training.rates.back(), expected->rates.back());
    for (int64_t number = 0; number < setup.updates; ++number) {
      const bool was_skipped = training.skipped[static_cast<std::size_t>(number)];
      EXPECT_EQ(was_skipped, setup.bad.contains(number));
    }
    training.accelerator.scaler().get_scale();  // waits
    training.accelerator.save_state(TempFolder().path("state"));
    EXPECT_EQ(training.accelerator.scaler().status().skips, std::ssize(setup.bad));
    EXPECT_EQ(training.accelerator.scaler().status().updates, setup.updates);
  });
}

TEST_P(NonfiniteOn, StepsLikeTorchByDefault) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    GuardedSetup setup{.options = with(precision, Nonfinite::step), .updates = 6, .bad = {2}};
    setup.options.nonfinite.reset();
    setup.options.warnings = accelerant::WarningOptions::none();
    GuardedTraining training(setup);
    training.train();
    EXPECT_EQ(training.accelerator.options().nonfinite, Nonfinite::step);
    EXPECT_FALSE(training.accelerator.scaler().is_enabled());
    EXPECT_TRUE(training.net->parameters()[0].isnan().all().item<bool>());
    EXPECT_EQ(std::ranges::count(training.skipped, true), 0);
  }
}

TEST_P(NonfiniteOn, StopThrowsAndChangesNothing) {
  for_all_kinds(Nonfinite::stop, [this](GuardedSetup setup) {
    setup.bad = {3};
    setup.updates = 20;
    GuardedTraining training(setup);
    for (int64_t number = 0; number < 3; ++number) training.update(number);
    const auto before = training.state();
    int64_t number = 3;
    const std::string error = whole_error_of([&] {
      for (; number < setup.updates; ++number) training.update(number);
    });
    EXPECT_LE(number, on_cuda() && setup.options.fused ? 7 : 3);
    EXPECT_TRUE(contains(error, "Gradients are not finite in update 4"));
    EXPECT_TRUE(contains(error, "0.weight [8, 3]: "));
    EXPECT_TRUE(contains(error, "2.bias [2]: 0 inf, 2 nan"));
    if (number > 3) {
      EXPECT_TRUE(contains(error, "left out too"));
    }
    EXPECT_TRUE(training.optimizer.step_was_skipped());
    expect_equal(training.state(), before);

    // The program catches it and goes on.
    for (int64_t later = 10; later < setup.updates; ++later) training.update(later);
    EXPECT_FALSE(training.optimizer.step_was_skipped());
    GuardedSetup clean = setup;
    clean.bad = {3, 4, 5, 6, 7, 8, 9};
    const auto expected = trained_without_bad_updates(clean);
    expect_equal(training.state(), expected->state());
    EXPECT_EQ(training.rates.back(), expected->rates.back());
    training.accelerator.end_training();
  });
}

TEST_P(NonfiniteOn, StopComesAgain) {
  GuardedSetup setup{
      .options = with(Precision::no, Nonfinite::stop), .updates = 40, .bad = {3, 20}};
  setup.windows = false;
  GuardedTraining training(setup);
  std::vector<std::string> errors;
  for (int64_t number = 0; number < setup.updates; ++number) {
    try {
      training.update(number);
    } catch (const accelerant::Error& error) {
      errors.emplace_back(error.what());
    }
  }
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_TRUE(contains(errors[0], "in update 4"));
  EXPECT_TRUE(contains(errors[1], "in update 21"));
  EXPECT_TRUE(contains(errors[1], "2.bias [2]: "));
  training.accelerator.end_training();
}

// Without a step that would throw, these places tell.
TEST_P(NonfiniteOn, StopIsToldBeforeSavingAndAtTheEnd) {
  if (!on_cuda()) GTEST_SKIP() << "on the CPU the step itself throws";
  for (const bool saves : {true, false}) {
    const TempFolder folder;
    GuardedSetup setup{.options = with(Precision::no, Nonfinite::stop), .bad = {3}};
    GuardedTraining training(setup);
    for (int64_t number = 0; number < 4; ++number) training.update(number);
    const std::string error = whole_error_of([&] {
      saves ? static_cast<void>(training.accelerator.save_state(folder.path("state")))
            : training.accelerator.end_training();
    });
    EXPECT_TRUE(contains(error, "in update 4"));
    if (saves) training.accelerator.save_state(folder.path("state"));
    training.accelerator.end_training();
  }
}

TEST_P(NonfiniteOn, CapturedStepsAreGuarded) {
  for (const Precision precision : kPrecisions) {
    for (const int64_t steps : {1, 2}) {
      for (const bool clips : {false, true}) {
        SCOPED_TRACE(testing::Message() << "precision " << static_cast<int>(precision) << ", steps "
                                        << steps << ", clips " << clips);
        GuardedSetup setup{.options = with(precision, Nonfinite::skip, steps),
                           .updates = 24,
                           .bad = {9, 10, 17},
                           .clips = clips,
                           .gamma = on_cuda() ? 0.9 : kNoSchedule};
        GuardedTraining training(setup);
        if (!on_cuda()) run_steps_anew(training.accelerator);
        training.capture();
        training.train();
        EXPECT_TRUE(training.is_captured());
        const auto expected = trained_without_bad_updates(setup);
        expect_equal(training.state(), expected->state());
        EXPECT_EQ(training.rates.back(), expected->rates.back());
      }
    }
  }
}

TEST_P(NonfiniteOn, CapturedStepsStop) {
  for (const Precision precision : kPrecisions) {
    for (const int64_t steps : {1, 2}) {
      SCOPED_TRACE(testing::Message()
                   << "precision " << static_cast<int>(precision) << ", steps " << steps);
      GuardedSetup setup{
          .options = with(precision, Nonfinite::stop, steps), .updates = 40, .bad = {12, 25}};
      GuardedTraining training(setup);
      if (!on_cuda()) run_steps_anew(training.accelerator);
      training.capture();
      std::vector<torch::Tensor> before;
      for (const int64_t bad : setup.bad) {
        int64_t number = before.empty() ? 0 : 20;
        const std::string error = whole_error_of([&] {
          for (; number < bad; ++number) training.update(number);
          before = training.state();
          for (; number < setup.updates; ++number) training.update(number);
        });
        EXPECT_TRUE(training.is_captured());
        EXPECT_LE(number, on_cuda() ? bad + 4 : bad);
        EXPECT_TRUE(contains(error, "Gradients are not finite in update"));
        EXPECT_TRUE(contains(error, "0.weight [8, 3]: "));
        expect_equal(training.state(), before);
      }
      training.update(30);
      EXPECT_FALSE(training.optimizer.step_was_skipped());
      EXPECT_FALSE(training.state()[0].equal(before[0]));
      training.accelerator.end_training();
    }
  }
}

// The checks of unscale_gradients() and of steps that are not fused.
TEST_P(NonfiniteOn, GradientsMayBeLookedAtBeforeTheStep) {
  for (const Nonfinite nonfinite : {Nonfinite::skip, Nonfinite::stop}) {
    for (const bool fused : {true, false}) {
      auto options = with(Precision::no, nonfinite);
      options.fused = fused;
      OneWeight t(options);
      const auto backward = [&](double x) {
        t.accelerator.backward(t.model(torch::full({1}, x, this->options())).sum());
      };
      backward(2);
      t.accelerator.unscale_gradients();
      EXPECT_EQ(t.gradient(), 2.0F);
      t.accelerator.clip_grad_value_(t.model, 1.0);
      EXPECT_FALSE(t.optimizer.step().skipped());
      EXPECT_EQ(t.weight(), 0.0F);
      t.optimizer.zero_grad();
      // The limit makes it finite, but as under a GradScaler it counts as it was.
      backward(kInfinity);
      t.accelerator.clip_grad_value_(t.model, 1.0);
      EXPECT_EQ(t.gradient(), 1.0F);
      if (nonfinite == Nonfinite::skip) {
        EXPECT_TRUE(t.optimizer.step().skipped());
      } else {
        EXPECT_TRUE(contains(whole_error_of([&] {
                               t.optimizer.step();
                               t.accelerator.end_training();
                             }),
                             "w [1]: 1 inf, 0 nan"));
      }
      EXPECT_EQ(t.weight(), 0.0F);
    }
  }
}

TEST_P(NonfiniteOn, EachOptimizerDecidesForItself) {
  for (const Nonfinite nonfinite : {Nonfinite::skip, Nonfinite::stop}) {
    auto options = with(Precision::no, nonfinite);
    Accelerator accelerator(options);
    Scale a;
    Scale b;
    torch::optim::SGD sgd_a(a->parameters(), 1.0);
    torch::optim::SGD sgd_b(b->parameters(), 1.0);
    auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
    const auto x = torch::full({1}, 2.0, this->options());
    accelerator.backward(ma(x).sum());
    accelerator.backward(mb(x * kInfinity).sum());
    EXPECT_FALSE(oa.step().skipped());
    if (nonfinite == Nonfinite::skip) {
      EXPECT_TRUE(ob.step().skipped());
      ob.zero_grad();
      accelerator.backward(mb(x).sum());
      EXPECT_FALSE(ob.step().skipped());
      EXPECT_EQ(b->w.item<float>(), -1.0F);
    } else {
      const std::string error = whole_error_of([&, &second = ob] {
        second.step();
        accelerator.end_training();
      });
      EXPECT_TRUE(contains(error, "model_1.w [1]: 1 inf"));
      EXPECT_EQ(b->w.item<float>(), 1.0F);
    }
    EXPECT_EQ(a->w.item<float>(), -1.0F);
  }
}

// Without loss scaling, nothing forbids these.
TEST_P(NonfiniteOn, WhatWorksWithoutScalingStillDoes) {
  OneWeight t(with(Precision::no, Nonfinite::skip));
  const auto x = torch::full({1}, 2.0, options());
  t.accelerator.backward(t.model(x).sum());
  t.optimizer.step();
  t.optimizer.step();  // with the same gradients
  EXPECT_EQ(t.weight(), -3.0F);
  t.optimizer.zero_grad();
  t.model(x).sum().backward();  // not through the Accelerator
  EXPECT_FALSE(t.optimizer.step().skipped());
  EXPECT_EQ(t.weight(), -5.0F);
  EXPECT_EQ(t.accelerator.scaler().get_scale(), 1.0);

  t.optimizer.zero_grad();
  t.accelerator.backward(t.model(x * kInfinity).sum());
  EXPECT_TRUE(contains(
      error_of([&] { t.accelerator.clip_grad_norm_(t.model, 1.0, {.error_if_nonfinite = true}); }),
      "non-finite"));
}

TEST_P(NonfiniteOn, SixteenBitParametersAreGuarded) {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    for (const bool fused : {true, false}) {
      auto options = with(Precision::no, Nonfinite::skip);
      options.fused = fused;
      OneWeight t(options);
      t.net->to(type);
      const auto x = torch::full({1}, 2.0, this->options().dtype(type));
      t.accelerator.backward(t.model(x).sum());
      EXPECT_FALSE(t.optimizer.step().skipped());
      t.optimizer.zero_grad();
      t.accelerator.backward(t.model(x * kInfinity).sum());
      EXPECT_TRUE(t.optimizer.step().skipped());
      EXPECT_EQ(t.net->w.to(torch::kFloat).item<float>(), -1.0F);
    }
  }
}

TEST_P(NonfiniteOn, SparseGradientsAreGuarded) {
  Accelerator accelerator(with(Precision::no, Nonfinite::skip));
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  torch::optim::SGD sgd(table->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(table, sgd);
  const torch::Tensor before = table->weight.detach().clone();
  const auto rows = torch::tensor({1, 3}, options().dtype(torch::kLong));
  accelerator.backward((model(rows) * kNotANumber).sum());
  EXPECT_TRUE(optimizer.step().skipped());
  EXPECT_TRUE(table->weight.equal(before));
  optimizer.zero_grad();
  accelerator.backward(model(rows).sum());
  EXPECT_FALSE(optimizer.step().skipped());
  EXPECT_TRUE(table->weight[1].equal(before[1] - 1));
}

ON_EVERY_DEVICE(NonfiniteOn);

// Overflows are part of the search for a scale, until there is nothing left to lower.
TEST(Nonfinite, UnderFp16StopWaitsForTheScaleToComeDown) {
  auto options = on_cpu(Precision::fp16);
  options.scaler = {.init_scale = 16};
  options.nonfinite = Nonfinite::stop;
  for (const double min_scale : {0x1p-126, 4.0}) {
    options.scaler.min_scale = min_scale;
    OneWeight t(options);
    int64_t steps = 0;
    const std::string error = whole_error_of([&] {
      for (; steps < 20; ++steps) {
        t.optimizer.zero_grad();
        t.backward(kInfinity);
        t.optimizer.step();
      }
    });
    EXPECT_TRUE(contains(error, "w [1]: 1 inf, 0 nan"));
    EXPECT_EQ(steps, min_scale == 4.0 ? 2 : 4);
    EXPECT_EQ(t.weight(), 1.0F);
  }
}

TEST(Nonfinite, StepIsRefusedUnderLossScaling) {
  auto options = on_cpu(Precision::fp16);
  EXPECT_EQ(Accelerator(options).options().nonfinite, Nonfinite::skip);
  options.nonfinite = Nonfinite::step;
  EXPECT_TRUE(contains(whole_error_of([&] { Accelerator accelerator(options); }),
                       "cannot be allowed under loss scaling"));
  options.scaler.enabled = false;
  OneWeight t(options);
  t.backward(kInfinity);
  t.optimizer.step();
  EXPECT_TRUE(std::isinf(t.weight()));
  options.nonfinite.reset();
  EXPECT_EQ(Accelerator(options).options().nonfinite, Nonfinite::step);
}

TEST(Nonfinite, StepsThatComputeTheLossAgainAreRefused) {
  for (const Nonfinite nonfinite : {Nonfinite::skip, Nonfinite::stop}) {
    auto options = on_cpu();
    options.nonfinite = nonfinite;
    OneWeight t(options);
    const auto closure = [&] {
      t.optimizer.zero_grad();
      t.backward(1);
      return torch::zeros({});
    };
    EXPECT_TRUE(contains(error_of([&] { t.optimizer.step(closure); }),
                         "A step that computes the loss again cannot look for inf and nan"));
    Accelerator accelerator(options);
    Scale net;
    torch::optim::LBFGS lbfgs(net->parameters());
    EXPECT_TRUE(contains(error_of([&] { accelerator.prepare(net, lbfgs); }), "with LBFGS"));
  }
}

TEST(Nonfinite, CheckpointsOfOtherPrecisionsKeepTheirScales) {
  const TempFolder folder;
  auto guarded_options = on_cpu();
  guarded_options.nonfinite = Nonfinite::skip;
  OneWeight scaled(scaled_options());
  scaled.backward(1);
  scaled.optimizer.step();
  scaled.accelerator.save_state(folder.path("scaled"));
  OneWeight guard(guarded_options);
  guard.accelerator.load_state(folder.path("scaled"));
  guard.backward(1);
  EXPECT_EQ(guard.gradient(), 1.0F);
  EXPECT_FALSE(guard.optimizer.step().skipped());
  EXPECT_EQ(guard.accelerator.scaler().get_scale(), 1.0);
  guard.accelerator.save_state(folder.path("guarded"));
  OneWeight again(scaled_options());
  again.accelerator.load_state(folder.path("guarded"));
  EXPECT_EQ(again.accelerator.scaler().get_scale(), 1024.0);
  EXPECT_EQ(again.weight(), guard.weight());
}

TEST(Nonfinite, ASavedTrainingGoesOnAfterAStop) {
  const TempFolder folder;
  auto options = on_cpu();
  options.nonfinite = Nonfinite::stop;
  OneWeight t(options);
  t.backward(1);
  t.optimizer.step();
  t.optimizer.zero_grad();
  t.backward(kNotANumber);
  EXPECT_TRUE(contains(whole_error_of([&] { t.optimizer.step(); }), "in update 2"));
  EXPECT_FALSE(t.net->w.grad().defined());
  t.accelerator.save_state(folder.path("state"));
  OneWeight other(options);
  other.accelerator.load_state(folder.path("state"));
  other.backward(1);
  EXPECT_FALSE(other.optimizer.step().skipped());
  EXPECT_EQ(other.weight(), -1.0F);
}

TEST(Nonfinite, RepeatedSkipsAreTold) {
  auto options = on_cpu();
  options.nonfinite = Nonfinite::skip;
  OneWeight t(options);
  const GatheredLog log;
  for (int i = 0; i < 30; ++i) {
    t.optimizer.zero_grad();
    t.backward(kNotANumber);
    t.optimizer.step();
  }
  ASSERT_EQ(log.messages().size(), 1U) << log.text();
  EXPECT_TRUE(contains(log.text(), "The last 20 optimizer steps were all skipped"));
  EXPECT_TRUE(contains(log.text(), "w [1]: 0 inf, 1 nan"));
  EXPECT_FALSE(contains(log.text(), "loss scale"));
}

TEST(Nonfinite, TheProfileTellsOfSkips) {
  auto options = on_cpu();
  options.nonfinite = Nonfinite::skip;
  OneWeight t(options);
  const auto update = [&](double x) {
    const auto window = t.accelerator.accumulate(t.model);
    t.backward(x);
    t.optimizer.step();
    t.optimizer.zero_grad();
  };
  update(kNotANumber);
  auto profile = t.accelerator.profile({.summary = nullptr});
  update(1);
  EXPECT_FALSE(contains(profile.summary(), "skipped"));
  for (const double x : {kNotANumber, 1.0, kNotANumber}) update(x);
  profile.finish();
  EXPECT_TRUE(profile.summary().ends_with("; 2 skipped")) << profile.summary();
}

}  // namespace
}  // namespace accelerator_test
