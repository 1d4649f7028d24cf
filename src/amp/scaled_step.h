// The interface of steps in two passes under a GradScaler: the first reads all gradients and finds
// out whether they are finite, the second unscales and updates in one go, or changes nothing.
// accelerant::FusedStep is one.
//
// It replaces the scaler's own check and unscaling: gradients are read once less and never written.
// The scaler keeps what it always keeps: the order of calls, the flag that several processes share,
// the report of an overflow.
//
//   auto result = ScalerAccess::step(scaler, scaled_step);  // both passes; nobody waits
//   scaler.update();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/amp/step_result.h"

namespace accelerant {

// A parameter and how many elements of its gradient are not finite.
struct CheckedGradient {
  std::size_t group = 0;
  std::size_t index = 0;  // within its group
  at::Tensor parameter = {};
  int64_t inf_count = 0;
  int64_t nan_count = 0;
};

// What the first pass has seen. Stays valid when the step and the gradients are gone, until the
// first pass of the next iteration.
class CheckedGradients {
 public:
  virtual ~CheckedGradients() = default;

  // The parameters it was about, without counts. Those that are gone are left out.
  virtual std::vector<CheckedGradient> parameters() const = 0;

  // Those of them with an overflow. Waits for the device.
  virtual std::vector<CheckedGradient> non_finite() const = 0;
};

// By what the gradients are to be multiplied.
struct GradientScale {
  // Zero-dimensional float32 on any device. Undefined: they are as they should be.
  at::Tensor inv_scale = {};

  // Changes when the value behind inv_scale may have changed.
  int64_t iteration = 0;
};

class ScaledStep {
 public:
  virtual ~ScaledStep() = default;

  // Whose gradients these are.
  virtual torch::optim::Optimizer& optimizer() const = 0;

  // Looks at the gradients, which do not change until check or apply. False: they cannot be read in
  // two passes (they are sparse, say), and step_otherwise is called instead.
  virtual bool is_possible() = 0;

  // Calls scaler.step(optimizer()), after what has to come before.
  virtual StepResult step_otherwise(GradScaler& scaler) = 0;

  struct Checked {
    at::Tensor found_inf = {};  // zero-dimensional float32, 0 or 1, that nobody writes any more
    std::shared_ptr<const CheckedGradients> gradients = {};
  };

  // The first pass. Both are empty if there are no gradients. Must not wait for the device, nor
  // must apply.
  virtual Checked check(const GradientScale& scale) = 0;

  // The second pass. Any value of `found_inf` but 0: changes nothing. Undefined: updates in any
  // case.
  virtual void apply(const GradientScale& scale, const at::Tensor& found_inf) = 0;
};

namespace detail {

// What of a GradScaler only the library uses.
struct ScalerAccess {
  // Steps in two passes that replace the scaler's own check and unscaling, and decides on the
  // device. Gradients of any type that the step can read. Where it cannot be done so, as
  // step(optimizer).
  static StepResult step(GradScaler& scaler, ScaledStep& scaled_step);

  // By what the gradients of the optimizer have still to be multiplied: undefined after unscale_()
  // and when disabled.
  static GradientScale gradient_scale(const GradScaler& scaler,
                                      const torch::optim::Optimizer& optimizer);

  // Forgets the checks since the last update(), and those of the iteration that it ended, as if
  // there had been none.
  static void discard_checks(GradScaler& scaler);
};

}  // namespace detail
}  // namespace accelerant
