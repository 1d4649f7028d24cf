// GradScaler: calls in the wrong order.
#include <accelerant/amp/grad_scaler.h>

#include <functional>
#include <string>

#include "support/expect_error.h"
#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;

class CallOrder : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    parameter = parameter_with_grad(full({2}, 4.0));
    optimizer.emplace(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(1.0));
  }

  at::Tensor parameter;
  std::optional<torch::optim::SGD> optimizer;
};
ON_EVERY_DEVICE(CallOrder);

TEST_P(CallOrder, NothingWorksBeforeScale) {
  GradScaler scaler({.device = GetParam()});
  const auto refuses = [](const std::string& function, const std::function<void()>& call) {
    EXPECT_TRUE(contains(error_of(call), "Attempted " + function + " but _scale is None."));
  };
  refuses("unscale_", [&] { scaler.unscale_(*optimizer); });
  refuses("step", [&] { scaler.step(*optimizer); });
  refuses("update", [&] { scaler.update(); });
  refuses("update", [&] { scaler.update(2.0); });
}

TEST_P(CallOrder, ErrorsSayWhatToDo) {
  GradScaler scaler = started_scaler(device());
  EXPECT_TRUE(contains(whole_error_of([&] { scaler.update(); }), "call step(optimizer)"));
  scaler.step(*optimizer);
  EXPECT_TRUE(contains(whole_error_of([&] { scaler.step(*optimizer); }), "call update() once"));
  scaler.update();
  parameter.mutable_grad().reset();
  EXPECT_TRUE(contains(whole_error_of([&] { scaler.step(*optimizer); }), "run backward before"));
}

TEST_P(CallOrder, UnscalingTwiceWithoutUpdateIsAnError) {
  GradScaler scaler = started_scaler(device());
  scaler.unscale_(*optimizer);
  EXPECT_EQ(error_of([&] { scaler.unscale_(*optimizer); }),
            "unscale_() has already been called on this optimizer since the last update().");
}

TEST_P(CallOrder, UnscalingAfterStepIsAnError) {
  GradScaler scaler = started_scaler(device());
  scaler.step(*optimizer);
  EXPECT_EQ(error_of([&] { scaler.unscale_(*optimizer); }),
            "unscale_() is being called after step().");
}

TEST_P(CallOrder, StepTwiceWithoutUpdateIsAnError) {
  GradScaler scaler = started_scaler(device());
  scaler.step(*optimizer);
  EXPECT_EQ(error_of([&] { scaler.step(*optimizer); }),
            "step() has already been called since the last update().");
}

TEST_P(CallOrder, UpdateAllowsUnscalingAgain) {
  GradScaler scaler = started_scaler(device());
  scaler.unscale_(*optimizer);
  scaler.step(*optimizer);
  scaler.update();
  EXPECT_NO_THROW(scaler.unscale_(*optimizer));
}

TEST_P(CallOrder, UpdateWithoutChecksIsAnError) {
  GradScaler scaler = started_scaler(device());
  EXPECT_EQ(error_of([&] { scaler.update(); }), "No inf checks were recorded prior to update.");
}

TEST_P(CallOrder, UpdateWithoutStepCountsAsClean) {
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(*optimizer);
  scaler.update();
  EXPECT_EQ(growth_tracker(scaler), 1);
  EXPECT_EQ(scaler.get_scale(), 4.0);
}

TEST_P(CallOrder, StepWithoutGradientsIsAnError) {
  GradScaler scaler = started_scaler(device());
  parameter.mutable_grad().reset();
  EXPECT_EQ(error_of([&] { scaler.step(*optimizer); }),
            "No inf checks were recorded for this optimizer.");
  scaler.update(4.0);
  EXPECT_NO_THROW(scaler.unscale_(*optimizer));
  EXPECT_TRUE(scaler.found_inf(*optimizer).empty());
}

TEST_P(CallOrder, StepOfAnAmpOptimizerWithoutGradientsIsAnError) {
  GradScaler scaler = started_scaler(device());
  parameter.mutable_grad().reset();
  FusedAdam fused({parameter});
  EXPECT_EQ(error_of([&] { scaler.step(fused); }),
            "No inf checks were recorded for this optimizer.");
}

TEST_P(CallOrder, ClosuresAreRefused) {
  GradScaler scaler = started_scaler(device());
  bool called = false;
  EXPECT_EQ(error_of([&] {
              scaler.step(*optimizer, [&] {
                called = true;
                return torch::zeros({});
              });
            }),
            "Closure use is not currently supported if GradScaler is enabled.");
  EXPECT_FALSE(called);
}

}  // namespace
