#include "accelerator/loop/scaler_updates.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_state.h"
#include "amp/gradient_guard.h"

namespace accelerant::detail {

bool ScalerUpdates::is_pending() const { return core_.scaler.is_enabled() && has_checks_; }

void ScalerUpdates::update_if_due() {
  if (!is_pending() || core_.accumulation.is_gathering()) return;
  const auto optimizers = core_.optimizers.all();
  const bool step_is_due = std::ranges::any_of(
      optimizers, [](const auto& optimizer) { return optimizer->awaits_step(); });
  if (!step_is_due) update();
}

void ScalerUpdates::update() {
  std::vector<std::shared_ptr<OptimizerState>> pending;
  if (core_.scales_loss()) pending = core_.optimizers.all();
  std::erase_if(pending, [](const auto& optimizer) { return !optimizer->has_scaled_gradients(); });
  if (!pending.empty()) {
    core_.capture.refuse("the loss scale changes while gradients of another optimizer wait");
  }
  // Use the scale as a tensor on its device: reading the number would wait.
  at::Tensor one;
  at::Tensor before;
  if (!pending.empty()) {
    one = at::ones({}, at::TensorOptions().device(*core_.options.device));
    before = core_.scaler.scale(one);
  }
  core_.scaler.update();
  for (const auto& optimizer : pending) {
    optimizer->multiply_gradients({.device_factor = core_.scaler.scale(one).div(before)});
  }
  if (core_.capture.is_capturing()) {
    core_.capture.in_replays([this, iteration = GuardAccess::last_iteration(core_.scaler)] {
      GuardAccess::note_replayed_update(core_.scaler, iteration);
      core_.nonfinite_stop.note_update();
    });
  } else {
    core_.nonfinite_stop.note_update();
  }
  core_.capture.replayable([this] { begin_iteration(); });
}

void ScalerUpdates::begin_iteration() {
  has_checks_ = false;
  for (const auto& optimizer : core_.optimizers.all()) optimizer->begin_iteration();
}

void ScalerUpdates::settle() {
  if (is_pending()) update();
}

}  // namespace accelerant::detail
