// The schedules as functions. schedule_fuzz_test.py compares their values with the Python
// originals; this file tests what the originals do not have.
#include "accelerant/optim/lr_schedule.h"

#include <cmath>
#include <limits>

#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerant::optim;

constexpr int64_t kLong = 1000000;  // far beyond the end of every schedule below

std::string refusal(const auto& kind) {
  return whole_error_of([&] { LrSchedule schedule(kind); });
}

TEST(LrSchedule, AfterTheEndTheRateStays) {
  const auto last = [](const LrSchedule& schedule, int64_t end) {
    const double rate = schedule.rate(2.0, end);
    for (const int64_t later : {end + 1, 2 * end, kLong})
      EXPECT_EQ(schedule.rate(2.0, later), rate);
    return rate;
  };
  EXPECT_EQ(last(LinearWithWarmup{.warmup_steps = 2, .total_steps = 10}, 10), 0.0);
  EXPECT_EQ(last(CosineWithHardRestarts{.total_steps = 10, .cycles = 3}, 10), 0.0);
  EXPECT_EQ(last(PolynomialWithWarmup{.total_steps = 10, .end_lr = 0.5, .power = 2.0}, 10), 0.5);
  EXPECT_EQ(last(WarmupStableDecay{.decay_steps = 10, .min_lr_ratio = 0.125}, 10), 0.25);
  EXPECT_NEAR(last(OneCycle{.max_lr = 1.0, .total_steps = 10}, 9), 1.0 / 25 / 1e4, 1e-18);
}

TEST(LrSchedule, ACosineGoesOnInItsWave) {
  const CosineWithWarmup schedule{.warmup_steps = 2, .total_steps = 10};
  EXPECT_EQ(schedule.rate(2.0, 10), 0.0);
  EXPECT_NEAR(schedule.rate(2.0, 18), 2.0, 1e-12);
}

TEST(LrSchedule, AWarmupLongerThanTheRunIsAWarning) {
  const GatheredLog log;
  const LrSchedule schedule(LinearWithWarmup{.warmup_steps = 9, .total_steps = 8});
  EXPECT_TRUE(contains(log.text(), "warmup_steps (9)"));
  EXPECT_EQ(schedule.rate(9.0, 8), 8.0);
  EXPECT_EQ(schedule.rate(9.0, 9), 0.0);
}

TEST(LrSchedule, NothingButWarmup) {
  EXPECT_EQ((PolynomialWithWarmup{.warmup_steps = 4, .total_steps = 4, .end_lr = 0.5}.rate(1.0, 4)),
            0.5);
  EXPECT_EQ((CosineWithWarmup{.warmup_steps = 4, .total_steps = 4}.rate(1.0, 3)), 0.75);
}

TEST(LrSchedule, EveryGroupOfAPolynomialEndsAtEndLr) {
  const PolynomialWithWarmup schedule{.total_steps = 10, .end_lr = 0.01};
  EXPECT_DOUBLE_EQ(schedule.rate(1.0, 10), 0.01);
  EXPECT_DOUBLE_EQ(schedule.rate(0.1, 10), 0.01);
  EXPECT_EQ(schedule.rate(0.001, 5), 0.001);  // already lower: not raised
  EXPECT_EQ(schedule.rate(0.0, 10), 0.0);
}

TEST(LrSchedule, OneCycleTakesTheBaseRateAsHighest) {
  const LrSchedule schedule = OneCycle{.total_steps = 10, .pct_start = 0.5};
  EXPECT_NEAR(schedule.rate(0.3, 0), 0.3 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(schedule.rate(0.3, 4), 0.3);
}

TEST(LrSchedule, OneCycleWithARiseOfOneStepStartsAtTheTop) {
  const OneCycle schedule{.max_lr = 1.0, .total_steps = 10, .pct_start = 0.1};
  EXPECT_EQ(schedule.rate(1.0, 0), 1.0);
  EXPECT_LT(schedule.rate(1.0, 1), 1.0);
}

TEST(LrSchedule, Lambda) {
  const LrSchedule one = Lambda{.factor = [](int64_t step) { return 1.0 / double(1 + step); }};
  EXPECT_EQ(one.rate(2.0, 3), 0.5);
  EXPECT_EQ(one.rate(2.0, 3, 7), 0.5);  // any group
  const LrSchedule each =
      Lambda{.per_group = {[](int64_t) { return 1.0; }, [](int64_t step) { return double(step); }}};
  EXPECT_EQ(each.rate(2.0, 3, 0), 2.0);
  EXPECT_EQ(each.rate(2.0, 3, 1), 6.0);
  const LrSchedule bad = Lambda{.factor = [](int64_t step) { return 1.0 / double(step); }};
  EXPECT_TRUE(contains(whole_error_of([&] { bad.rate(1.0, 0); }), "at step 0"));
}

TEST(LrSchedule, ChainedFactorsMultiply) {
  const LrSchedule schedule =
      Chained{{ConstantWithWarmup{.warmup_steps = 10}, StepDecay{.step_size = 4, .gamma = 0.5}}};
  EXPECT_DOUBLE_EQ(schedule.rate(8.0, 0), 0.0);
  EXPECT_DOUBLE_EQ(schedule.rate(8.0, 5), 8.0 * 0.5 * 0.5);
  EXPECT_DOUBLE_EQ(schedule.rate(8.0, 12), 8.0 * 0.125);
}

TEST(LrSchedule, SequentialStartsEachAnew) {
  const LrSchedule schedule = Sequential{
      .schedules = {ConstantWithWarmup{.warmup_steps = 4}, Constant{}, Exponential{.gamma = 0.5}},
      .milestones = {4, 6}};
  const std::vector<double> expected = {0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.25};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_DOUBLE_EQ(schedule.rate(1.0, static_cast<int64_t>(step)), expected[step]) << step;
  }
}

TEST(LrSchedule, CompositionsNest) {
  const LrSchedule inner = Sequential{
      .schedules = {Constant{}, OneCycle{.max_lr = {1.0, 2.0}, .total_steps = 5, .pct_start = 0.6}},
      .milestones = {3}};
  const LrSchedule schedule = Chained{{inner, Exponential{.gamma = 1.0}}};
  EXPECT_TRUE(schedule.sets_momentum());
  EXPECT_EQ(schedule.momentum(0), std::nullopt);  // the first one leaves it alone
  EXPECT_DOUBLE_EQ(schedule.momentum(3).value(), 0.95);
  EXPECT_DOUBLE_EQ(schedule.momentum(5).value(), 0.85);
  EXPECT_DOUBLE_EQ(schedule.rate(0.1, 5, 1), 2.0);
  EXPECT_TRUE(contains(whole_error_of([&] { schedule.check_groups({0.1}); }), "max_lr"));
}

struct Sawtooth {  // a user-defined kind
  int64_t period = 3;
  double rate(double base_lr, int64_t step) const {
    return base_lr * static_cast<double>(step % period);
  }
};

TEST(LrSchedule, OwnKinds) {
  const LrSchedule schedule = Sawtooth{};
  EXPECT_EQ(schedule.rate(2.0, 5), 4.0);
  EXPECT_FALSE(schedule.sets_momentum());
  EXPECT_EQ(schedule.momentum(5), std::nullopt);
  EXPECT_DOUBLE_EQ(LrSchedule(Chained{{schedule, schedule}}).rate(2.0, 5), 8.0);
}

TEST(LrSchedule, OptionsAreChecked) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(contains(refusal(ConstantWithWarmup{.warmup_steps = -1}), "warmup_steps"));
  EXPECT_TRUE(contains(refusal(LinearWithWarmup{}), "total_steps"));
  EXPECT_TRUE(contains(refusal(CosineWithWarmup{.total_steps = 8, .cycles = -1}), "cycles"));
  EXPECT_TRUE(contains(refusal(CosineWithWarmup{.total_steps = 8, .min_lr_ratio = 1.5}), "0 to 1"));
  EXPECT_TRUE(contains(refusal(CosineWithHardRestarts{.total_steps = 8, .cycles = 0}), "cycles"));
  EXPECT_TRUE(contains(refusal(PolynomialWithWarmup{.total_steps = 8, .power = 0}), "power"));
  EXPECT_TRUE(contains(refusal(PolynomialWithWarmup{.total_steps = 8, .end_lr = -1}), "end_lr"));
  EXPECT_TRUE(contains(refusal(InverseSqrt{.timescale = 0}), "timescale"));
  EXPECT_TRUE(contains(refusal(WarmupStableDecay{}), "stable_steps"));
  EXPECT_TRUE(contains(refusal(WarmupStableDecay{.stable_steps = INT64_MAX}), "stable_steps"));
  EXPECT_TRUE(
      contains(refusal(WarmupStableDecay{.decay_steps = 1, .min_lr_ratio = kNan}), "0 to 1"));
  EXPECT_TRUE(contains(refusal(StepDecay{}), "step_size"));
  EXPECT_TRUE(contains(refusal(StepDecay{.step_size = 1, .gamma = 0}), "gamma"));
  EXPECT_TRUE(contains(refusal(MultiStep{.milestones = {3, -1}}), "a milestone"));
  EXPECT_TRUE(contains(refusal(Exponential{}), "gamma"));
  EXPECT_TRUE(contains(refusal(CosineAnnealing{}), "t_max"));
  EXPECT_TRUE(contains(refusal(CosineAnnealing{.t_max = 1, .eta_min = kNan}), "eta_min"));
  EXPECT_TRUE(contains(refusal(OneCycle{}), "total_steps"));
  EXPECT_TRUE(contains(refusal(OneCycle{.max_lr = -1.0, .total_steps = 1}), "max_lr"));
  EXPECT_TRUE(contains(refusal(OneCycle{.total_steps = 1, .pct_start = 2}), "pct_start"));
  EXPECT_TRUE(contains(refusal(OneCycle{.total_steps = 1, .div_factor = 0}), "div_factor"));
  EXPECT_TRUE(contains(refusal(OneCycle{.total_steps = 1, .max_momentum = 1.0}), "max_momentum"));
  EXPECT_TRUE(contains(refusal(Lambda{}), "neither"));
  EXPECT_TRUE(contains(refusal(Lambda{.per_group = {nullptr}}), "an empty function"));
  EXPECT_TRUE(contains(refusal(Chained{}), "at least 1"));
  EXPECT_TRUE(contains(refusal(Sequential{}), "at least 1"));
  EXPECT_TRUE(contains(refusal(Sequential{.schedules = {Constant{}}, .milestones = {2}}),
                       "number of milestones"));
  EXPECT_TRUE(contains(
      refusal(Sequential{.schedules = {Constant{}, Constant{}, Constant{}}, .milestones = {5, 5}}),
      "more than 5"));
}

}  // namespace
