// AcceleratorOptions::nonfinite in several processes.
#include <gtest/gtest.h>

#include "accelerator/guarded_training.h"
#include "accelerator/run_anew_backend.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace accelerator_test {
namespace {

using accelerant::Precision;

void expect_equal_everywhere(accelerant::Accelerator& accelerator,
                             const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& tensor : tensors) {
    const auto all = accelerator.gather(tensor.reshape({1, -1}));
    EXPECT_TRUE(all.eq(all[0]).all().item<bool>()) << all;
  }
}

accelerant::AcceleratorOptions on_cpu_with(Precision precision, Nonfinite nonfinite) {
  auto options = guarded(precision, nonfinite);
  options.cpu = true;
  return options;
}

// The text of the Error, which must be the same in all processes.
std::string error_everywhere(accelerant::Accelerator& accelerator, const std::function<void()>& f) {
  const std::string error = whole_error_of(f);
  for (const auto& other : accelerant::dist::gather_bytes(accelerator.world(), error)) {
    EXPECT_EQ(other, error);
  }
  return error;
}

// The bad batches are one process's own.
RANK_TEST(NonfiniteRanks, OneBadBatchSkipsTheStepEverywhere, 2) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool fused : {true, false}) {
      for (const bool captured : {false, true}) {
        GuardedSetup setup{.options = on_cpu_with(precision, Nonfinite::skip), .updates = 20};
        setup.options.fused = fused;
        SCOPED_TRACE(testing::Message() << "precision " << static_cast<int>(precision) << ", fused "
                                        << fused << ", captured " << captured);
        if (captured) setup.gamma = kNoSchedule;
        const GuardedSetup clean = setup;
        if (rank() == 0) setup.bad.clear();
        GuardedTraining training(setup);
        if (captured) {
          run_steps_anew(training.accelerator);
          training.capture();
        }
        training.train();
        EXPECT_EQ(training.is_captured(), captured);
        expect_equal_everywhere(training.accelerator, training.state());
        EXPECT_EQ(training.accelerator.scaler().status().skips, 3);
        const auto expected = trained_without_bad_updates(clean);
        expect_equal(training.state(), expected->state());
      }
    }
  }
}

RANK_TEST(NonfiniteRanks, AllProcessesStopInTheSameStep, 2) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool captured : {false, true}) {
      GuardedSetup setup{
          .options = on_cpu_with(precision, Nonfinite::stop), .updates = 20, .bad = {9}};
      if (rank() == 0) setup.bad.clear();
      GuardedTraining training(setup);
      if (captured) {
        run_steps_anew(training.accelerator);
        training.capture();
      }
      for (int64_t number = 0; number < 9; ++number) training.update(number);
      const auto before = training.state();
      const std::string error = error_everywhere(training.accelerator, [&] { training.update(9); });
      // The average carries it to both.
      EXPECT_TRUE(contains(error, "rank 0:\n0.weight [8, 3]: "));
      EXPECT_TRUE(contains(error, "rank 1:\n0.weight [8, 3]: "));
      expect_equal(training.state(), before);
      training.update(10);
      EXPECT_FALSE(training.optimizer.step_was_skipped());
      expect_equal_everywhere(training.accelerator, training.state());
      training.accelerator.end_training();
    }
  }
}

// In windows that exchange nothing, only one process has the bad gradient.
RANK_TEST(NonfiniteRanks, LocalGradientsStopEverywhereToo, 2) {
  for (const Nonfinite nonfinite : {Nonfinite::skip, Nonfinite::stop}) {
    for (const bool fused : {true, false}) {
      auto options = on_cpu_with(Precision::no, nonfinite);
      options.fused = fused;
      OneWeight t(options);
      auto local = t.accelerator.local_sgd(t.model, {.steps = 8});
      const auto update = [&](double x) {
        const auto window = t.accelerator.accumulate(t.model);
        t.backward(x);
        const auto result = t.optimizer.step();
        t.optimizer.zero_grad();
        local.step();
        return result.skipped();
      };
      EXPECT_FALSE(update(1));
      const double x = rank() == 1 ? kNotANumber : 1.0;
      if (nonfinite == Nonfinite::skip) {
        EXPECT_TRUE(update(x));
      } else {
        const std::string error = error_everywhere(t.accelerator, [&] { update(x); });
        EXPECT_TRUE(contains(error, "rank 1:\nw [1]: 0 inf, 1 nan"));
        EXPECT_FALSE(contains(error, "rank 0"));
      }
      EXPECT_EQ(t.weight(), 0.0F);
    }
  }
}

RANK_TEST(NonfiniteRanks, UnevenInputsAreRefused, 2) {
  OneWeight t(on_cpu_with(Precision::no, Nonfinite::skip));
  EXPECT_TRUE(contains(error_of([&] { t.accelerator.join_uneven_inputs({&t.model}, [] {}); }),
                       "join_uneven_inputs() cannot be used if steps look for inf and nan"));
}

}  // namespace
}  // namespace accelerator_test
