// GradScaler: construction and disabled mode.
#include <nlohmann/json.hpp>

#include <accelerant/amp/grad_scaler.h>

#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;
using accelerant::GradScalerOptions;

class Construction : public OnDevice {
 protected:
  GradScaler make(GradScalerOptions options = {}) const {
    options.device = GetParam();
    return GradScaler(options);
  }
  GradScaler make_disabled() const { return make({.enabled = false}); }
};
ON_EVERY_DEVICE(Construction);

TEST_P(Construction, DefaultsAreThoseOfPyTorch) {
  const GradScaler scaler = make();
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  EXPECT_EQ(growth_tracker(scaler), 0);
}

TEST_P(Construction, GrowthFactorMustExceedOne) {
  EXPECT_EQ(error_of([&] { make({.growth_factor = 1.0}); }), "The growth factor must be > 1.0.");
  EXPECT_EQ(error_of([&] { make({.growth_factor = kNan}); }), "The growth factor must be > 1.0.");
}

TEST_P(Construction, BackoffFactorMustBeBelowOne) {
  EXPECT_EQ(error_of([&] { make({.backoff_factor = 1.0}); }), "The backoff factor must be < 1.0.");
}

TEST_P(Construction, BackoffFactorMustBePositive) {
  EXPECT_TRUE(contains(error_of([&] { make({.backoff_factor = 0.0}); }), "must be > 0.0"));
  EXPECT_TRUE(contains(error_of([&] { make({.backoff_factor = -1.0}); }), "must be > 0.0"));
}

TEST_P(Construction, GrowthIntervalMustBeAtLeastOne) {
  EXPECT_TRUE(contains(error_of([&] { make({.growth_interval = 0}); }), "growth interval"));
}

TEST_P(Construction, SettersValidate) {
  GradScaler scaler = make();
  EXPECT_EQ(error_of([&] { scaler.set_growth_factor(0.5); }), "The growth factor must be > 1.0.");
  EXPECT_EQ(error_of([&] { scaler.set_backoff_factor(2.0); }), "The backoff factor must be < 1.0.");
  EXPECT_TRUE(contains(error_of([&] { scaler.set_growth_interval(0); }), "growth interval"));
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  scaler.set_growth_factor(3.0);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(7);
  EXPECT_EQ(scaler.get_growth_factor(), 3.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 7);
}

void expect_disabled_behaviour(GradScaler& scaler, at::Device device) {
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.state_dict(), nlohmann::json::object());
  EXPECT_EQ(scaler.status().growth_tracker, 0);
  const at::Tensor output = torch::ones({3}, device);
  EXPECT_TRUE(scaler.scale(output).is_same(output));

  at::Tensor parameter = parameter_with_grad(torch::full({2}, 4.0, device));
  torch::optim::SGD optimizer({parameter}, 1.0);
  scaler.unscale_(optimizer);
  scaler.unscale_(optimizer);  // the order does not matter either
  EXPECT_TRUE(all_equal(parameter.grad(), 4.0));
  const auto result = scaler.step(optimizer, [&] { return torch::full({}, 3.0); });
  EXPECT_EQ(result.loss().item<double>(), 3.0);
  EXPECT_FALSE(result.skipped());
  EXPECT_TRUE(all_equal(parameter, -4.0));
  scaler.update();
  scaler.update(5.0);
  EXPECT_EQ(scaler.get_scale(), 1.0);
}

TEST_P(Construction, DisabledDoesNothing) {
  GradScaler scaler = make_disabled();
  expect_disabled_behaviour(scaler, device());
  // PyTorch raises AttributeError here; the configured values are more useful.
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
}

TEST_P(Construction, DisabledLoadsAnything) {
  GradScaler scaler = make_disabled();
  scaler.load_state_dict(nlohmann::json::object());
  EXPECT_EQ(scaler.get_scale(), 1.0);
}

TEST(ConstructionWithoutCuda, DisablesItselfWithOneWarning) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "CUDA is there";
  const GatheredLog log;
  GradScaler scaler;
  EXPECT_EQ(log.messages(), std::vector<std::string>{
                                "GradScaler is enabled, but CUDA is not available. Disabling."});
  expect_disabled_behaviour(scaler, at::kCPU);
}

TEST(Options, OutOfRangeValuesAreRefused) {
  const auto refused = [](GradScalerOptions options) {
    options.device = at::kCPU;
    return error_of([&] { GradScaler scaler(options); });
  };
  EXPECT_TRUE(contains(refused({.init_scale = 0.0}), "init_scale"));
  EXPECT_TRUE(contains(refused({.init_scale = kInf}), "init_scale"));
  EXPECT_TRUE(contains(refused({.min_scale = -1.0}), "min_scale"));
  EXPECT_TRUE(contains(refused({.max_scale = kNan}), "max_scale"));
  EXPECT_TRUE(contains(refused({.min_scale = 4.0, .max_scale = 2.0}), "min_scale is above"));
  EXPECT_TRUE(contains(refused({.hysteresis = 0}), "hysteresis"));
  EXPECT_TRUE(contains(refused({.init_scale = 8, .max_scale = 4}), "init_scale"));
  EXPECT_TRUE(contains(refused({.init_scale = 1, .min_scale = 2}), "init_scale"));
}

}  // namespace
