// The interface of two-pass steps under a GradScaler. The first pass reads all gradients and checks
// whether they are finite. The second unscales and updates at once, or changes nothing.
// accelerant::FusedStep implements it.
//
// It replaces the scaler's own check and unscaling: gradients are read once less and never written.
// The scaler still handles the order of calls, the flag that several processes share, and the
// report of an overflow.
//
//   auto result = ScalerAccess::step(scaler, scaled_step);  // both passes, without waiting
//   scaler.update();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/amp/step_result.h"

namespace accelerant {

// A parameter, and how many elements of its gradient are not finite.
struct CheckedGradient {
  std::size_t group = 0;
  std::size_t index = 0;  // within its group
  at::Tensor parameter = {};
  int64_t inf_count = 0;
  int64_t nan_count = 0;
};

// What the first pass found. Stays valid after the step and the gradients are gone, until the first
// pass of the next iteration.
class CheckedGradients {
 public:
  virtual ~CheckedGradients() = default;

  // The checked parameters, without counts. Parameters that no longer exist are left out.
  virtual std::vector<CheckedGradient> parameters() const = 0;

  // The parameters with an overflow. Waits for the device.
  virtual std::vector<CheckedGradient> non_finite() const = 0;
};

// The factor for the gradients.
struct GradientScale {
  // Zero-dimensional float32 on any device. Undefined: no scaling is needed.
  at::Tensor inv_scale = {};

  // Changes when the value behind inv_scale may have changed.
  int64_t iteration = 0;

  // Zero-dimensional float32 on any device: not 0 if the training is stopped, so that the check
  // must report an overflow in any case. Undefined: it never is.
  at::Tensor stopped = {};
};

class ScaledStep {
 public:
  virtual ~ScaledStep() = default;

  // The optimizer whose gradients these are.
  virtual torch::optim::Optimizer& optimizer() const = 0;

  // Inspects the gradients, which must not change until check or apply. Returns false if two passes
  // are not possible (for example, for sparse gradients); step_otherwise is called then.
  virtual bool is_possible() = 0;

  // Calls scaler.step(optimizer()), after any preparation it needs.
  virtual StepResult step_otherwise(GradScaler& scaler) = 0;

  struct Checked {
    at::Tensor found_inf = {};  // zero-dimensional float32, 0 or 1; no longer written
    std::shared_ptr<const CheckedGradients> gradients = {};
  };

  // The first pass. Both fields are empty if there are no gradients. Neither check nor apply may
  // wait for the device.
  virtual Checked check(const GradientScale& scale) = 0;

  // The second pass. Changes nothing if `found_inf` is not 0. If it is undefined, always updates.
  virtual void apply(const GradientScale& scale, const at::Tensor& found_inf) = 0;
};

namespace detail {

// The parts of a GradScaler that only the library uses.
struct ScalerAccess {
  // What the scaler holds: see grad_scaler_impl.h.
  template <class Scaler>
  static auto& impl(Scaler& scaler) {
    return *scaler.impl_;
  }

  // Steps in two passes that replace the scaler's own check and unscaling, and decides on the
  // device. Accepts gradients of any type that the step can read. If two passes are not possible,
  // works like step(optimizer).
  static StepResult step(GradScaler& scaler, ScaledStep& scaled_step);

  // The factor that the optimizer's gradients still need: undefined after unscale_() and when
  // disabled.
  static GradientScale gradient_scale(const GradScaler& scaler,
                                      const torch::optim::Optimizer& optimizer);

  // Discards the checks since the last update(), and those of the iteration that it ended.
  static void discard_checks(GradScaler& scaler);
};

}  // namespace detail
}  // namespace accelerant
