// GradScaler: how the scale changes.
#include <accelerant/amp/grad_scaler.h>

#include "amp/grad_scaler_rules.h"
#include "kernels/scale_state.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;
using accelerant::GradScalerOptions;
using ScaleAndTracker = std::pair<double, int64_t>;

class Update : public OnDevice {
 protected:
  // One iteration with or without an overflow; returns (scale, tracker).
  ScaleAndTracker iterate(GradScaler& scaler, bool overflow) const {
    torch::optim::SGD optimizer({parameter_with_grad(full({2}, overflow ? kInf : 1.0))}, 1.0);
    EXPECT_EQ(scaler.step(optimizer).skipped(), overflow);
    scaler.update();
    return {scaler.get_scale(), growth_tracker(scaler)};
  }

  std::vector<ScaleAndTracker> run(const GradScalerOptions& options,
                                   const std::vector<bool>& overflows) const {
    GradScaler scaler = started_scaler(device(), options);
    std::vector<ScaleAndTracker> history;
    for (const bool overflow : overflows) history.push_back(iterate(scaler, overflow));
    return history;
  }
};
ON_EVERY_DEVICE(Update);

using History = std::vector<ScaleAndTracker>;

TEST_P(Update, GrowsAndBacksOff) {
  EXPECT_EQ(run({.init_scale = 4, .growth_factor = 2, .backoff_factor = 0.25, .growth_interval = 2},
                {false, false, false, true, false}),
            (History{{4, 1}, {8, 0}, {8, 1}, {2, 0}, {2, 1}}));
}

// Whatever a reduction does to the flag, any value but 0 is an overflow.
TEST_P(Update, AnyNonZeroFlagCounts) {
  GradScaler scaler = started_scaler(
      device(),
      GradScalerOptions{
          .init_scale = 4, .growth_factor = 2, .backoff_factor = .25, .growth_interval = 2});
  const std::pair<double, ScaleAndTracker> cases[] = {
      {0.0, {4, 1}}, {0.0, {8, 0}}, {2.0, {2, 0}}, {-1.0, {.5, 0}}, {kNan, {.125, 0}}};
  // The original, side by side.
  at::Tensor torch_scale = full({}, 4.0);
  at::Tensor torch_tracker = full({}, 0, at::kInt);
  for (const auto& [flag, expected] : cases) {
    scaler.set_found_inf_reduction(
        [value = flag](at::Tensor& found_inf) { found_inf.fill_(value); });
    torch::optim::SGD optimizer({parameter_with_grad(full({2}, 1.0))}, 1.0);
    EXPECT_EQ(scaler.step(optimizer).skipped(), flag != 0.0);
    scaler.update();
    EXPECT_EQ((ScaleAndTracker{scaler.get_scale(), growth_tracker(scaler)}), expected);
    at::_amp_update_scale_(torch_scale, torch_tracker, full({}, flag), 2.0, 0.25, 2);
    EXPECT_EQ(torch_scale.item<double>(), expected.first);
    EXPECT_EQ(torch_tracker.item<int64_t>(), expected.second);
  }
}

TEST_P(Update, TheScaleStaysFinite) {
  EXPECT_EQ(run({.init_scale = 0x1p127, .growth_interval = 1}, {false}), (History{{0x1p127, 0}}));
  const auto history =
      run({.init_scale = 1e38, .growth_factor = 16, .growth_interval = 1}, {false, false, false});
  EXPECT_TRUE(std::isfinite(history.back().first));
}

TEST_P(Update, TheScaleCannotStickAtZero) {
  GradScaler scaler =
      started_scaler(device(), GradScalerOptions{.init_scale = 0x1p-126, .growth_interval = 1});
  EXPECT_EQ(iterate(scaler, true).first, 0x1p-126);
  EXPECT_EQ(iterate(scaler, false).first, 0x1p-125);
  // An overflow neither raises a scale below the floor nor lowers it to zero.
  EXPECT_EQ(run({.init_scale = 0x1p-149}, {true}).back().first, 0x1p-149);
}

TEST_P(Update, GrowthDoesNotStallBehindALoweredInterval) {
  GradScaler scaler =
      started_scaler(device(), GradScalerOptions{.init_scale = 4, .growth_interval = 10});
  for (int i = 0; i < 5; ++i) iterate(scaler, false);
  scaler.set_growth_interval(3);
  EXPECT_EQ(iterate(scaler, false), (ScaleAndTracker{8, 0}));
}

TEST_P(Update, ANewScaleNeedsNoChecksAndKeepsTheTracker) {
  GradScaler scaler = started_scaler(device());
  scaler.update(3.0);  // needs no checks
  EXPECT_EQ(scaler.get_scale(), 3.0);
  at::Tensor parameter = parameter_with_grad(full({2}, 1.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  scaler.step(optimizer);
  scaler.update(7.0);
  EXPECT_EQ(scaler.get_scale(), 7.0);
  EXPECT_EQ(growth_tracker(scaler), 0);
  EXPECT_NO_THROW(scaler.unscale_(optimizer));
}

TEST_P(Update, ANewScaleMayBeATensorOfOneElement) {
  GradScaler scaler = started_scaler(device());
  const std::string text = "new_scale should be a float or a 1-element";
  EXPECT_TRUE(contains(error_of([&] { scaler.update(full({}, 2.0).requires_grad_()); }), text));
  EXPECT_TRUE(contains(error_of([&] { scaler.update(full({2}, 2.0)); }), text));
  const std::pair<at::Tensor, double> good[] = {{full({}, 2.0), 2.0},
                                                {full({1}, 3.0), 3.0},  // refused by PyTorch
                                                {full({}, 4.0, at::kDouble), 4.0},
                                                {torch::full({}, 5.0), 5.0}};  // another device
  for (const auto& [tensor, value] : good) {
    scaler.update(tensor);
    EXPECT_EQ(scaler.get_scale(), value);
  }
}

TEST_P(Update, UselessScalesAreRefused) {
  GradScaler scaler = started_scaler(device(), 4.0);
  for (const double bad : {0.0, -1.0, kInf, kNan, 1e300, 1e-300}) {
    EXPECT_TRUE(contains(error_of([&] { scaler.update(bad); }), "new_scale"));
    EXPECT_TRUE(
        contains(error_of([&] { scaler.update(full({}, bad, at::kDouble)); }), "new_scale"));
  }
  EXPECT_EQ(scaler.get_scale(), 4.0);
}

TEST_P(Update, TheTensorOfANewScaleIsCopied) {
  GradScaler scaler = started_scaler(device());
  const at::Tensor new_scale = full({}, 8.0);
  scaler.update(new_scale);
  new_scale.fill_(1.0);
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

// In PyTorch a tracker of the wrong type is an error; ours is not a tensor, so it cannot have one.
TEST(UpdateState, TheTrackerIsAnInteger) {
  static_assert(std::is_same_v<decltype(accelerant::kernels::ScaleState::growth_tracker), int32_t>);
  try {
    at::Tensor scale = torch::ones({});
    at::Tensor tracker = torch::zeros({});
    at::_amp_update_scale_(scale, tracker, torch::zeros({}), 2.0, 0.5, 2);
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(contains(error.what_without_backtrace(), "growth_tracker must be an int tensor."));
  }
}

// Features that PyTorch does not have.

TEST_P(Update, MinimumAndMaximum) {
  EXPECT_EQ(run({.init_scale = 4, .growth_interval = 1, .min_scale = 3, .max_scale = 10},
                {false, false, false, true, true, true}),
            (History{{8, 0}, {10, 0}, {10, 0}, {5, 0}, {3, 0}, {3, 0}}));
}

TEST_P(Update, HysteresisRefilledByGrowth) {
  EXPECT_EQ(run({.init_scale = 64, .growth_interval = 2, .hysteresis = 2},
                {true, false, true, true, false, false, true, true}),
            (History{{64, 0}, {64, 1}, {32, 0}, {16, 0}, {16, 1}, {32, 0}, {32, 0}, {16, 0}}));
}

TEST_P(Update, HysteresisRefilledByCleanIterations) {
  EXPECT_EQ(run({.init_scale = 64,
                 .growth_interval = 100,
                 .hysteresis = 2,
                 .hysteresis_refill = GradScalerOptions::HysteresisRefill::on_clean_iteration},
                {true, false, true, false, true, true}),
            (History{{64, 0}, {64, 1}, {64, 0}, {64, 1}, {64, 0}, {32, 0}}));
}

TEST_P(Update, StaticScale) {
  EXPECT_EQ(
      run({.init_scale = 64, .growth_interval = 2, .dynamic = false}, {true, false, false, true}),
      (History{{64, 0}, {64, 1}, {64, 0}, {64, 0}}));
}

TEST_P(Update, StatusCountsSkips) {
  GradScaler scaler = started_scaler(device(), 64.0);
  EXPECT_EQ(scaler.status().last_skip, 0);
  for (const bool overflow : {false, true, false, true, false}) iterate(scaler, overflow);
  // iterate() has waited for the device, so the mirror is up to date.
  const auto status = scaler.status();
  EXPECT_EQ(status.updates, 5);
  EXPECT_EQ(status.skips, 2);
  EXPECT_EQ(status.last_skip, 4);
  EXPECT_EQ(status.scale, 16.0);
  EXPECT_EQ(status.growth_tracker, 1);
  scaler.update(8.0);
  scaler.get_scale();  // waits
  EXPECT_EQ(scaler.status().scale, 8.0);
}

}  // namespace
