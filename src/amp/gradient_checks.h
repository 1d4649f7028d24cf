// The checks of one optimizer's gradients for inf and nan, between two updates of a scaler.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <unordered_set>
#include <vector>

#include "amp/scaled_step.h"
#include "amp/unscale.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

// A parameter whose gradient was checked. Both are weak references: a check keeps no memory alive.
struct CheckedParameter {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  c10::weak_intrusive_ptr<c10::TensorImpl> gradient;  // to detect whether it was replaced
  int64_t gradient_version = 0;                       // to detect whether it was written
  std::size_t group = 0;
  std::size_t index = 0;  // within its group
};

// A parameter whose gradient is not finite.
struct NonFiniteParameter {
  CheckedParameter checked;
  int64_t inf_count;
  int64_t nan_count;
};

enum class Float16Gradients { refused, allowed };

class GradientChecks {
 public:
  // Checks the gradients of all parameters of `optimizer` after multiplication by `inv_scale`, a
  // zero-dimensional float32 tensor on any device, and writes the products if asked. Throws Error
  // if a gradient cannot be unscaled.
  void run(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
           kernels::Writing writing, Float16Gradients float16);

  // Checks gradients again that were written or replaced since the first check; `one` is a float32
  // 1.
  void run_on_changed(torch::optim::Optimizer& optimizer, const at::Tensor& one);

  // Adopts the check of a two-pass step. Does nothing if that found no gradients.
  void adopt(ScaledStep::Checked checked);

  // Whether there was no gradient to check.
  bool empty() const { return devices_.empty() && !adopted_.gradients; }

  // The overflow flags, one per device with gradients: zero-dimensional float32, 0 or 1.
  std::vector<at::Tensor> flags() const;

  // One of the checked parameters that is also in `parameters`, if any.
  std::optional<CheckedParameter> find_any(
      const std::unordered_set<const c10::TensorImpl*>& parameters) const;

  // The parameters that caused an overflow. Waits for the device.
  std::vector<NonFiniteParameter> non_finite_parameters() const;

 private:
  struct Gradients;

  // The gradients of one device, checked at unscale_ and, if they changed, at step.
  struct DeviceCheck {
    at::Tensor found_inf;
    std::vector<CheckedParameter> parameters;
    at::Tensor memory;  // the flag and the counts of both rounds, so that one fill clears them all

    Counts counts(int round) const;
  };

  static std::vector<Gradients> collect(torch::optim::Optimizer& optimizer,
                                        Float16Gradients float16);
  static DeviceCheck start(Gradients& gradients);
  static void check(DeviceCheck& check, int round, const std::vector<at::Tensor>& gradients,
                    const at::Tensor& inv_scale, kernels::Writing writing);
  static std::vector<NonFiniteParameter> non_finite(const DeviceCheck& check, int round);

  std::vector<DeviceCheck> devices_;   // the first check, one per device
  std::vector<DeviceCheck> replaced_;  // of gradients replaced since then; flags are shared
  ScaledStep::Checked adopted_;
};

// The tensor on `device`. Waits only if that is the CPU, because the value is about to be read
// there.
at::Tensor copy_to(const at::Tensor& tensor, c10::Device device);

// Adds 1 to `count`, one int64 on the device of the flag, if the flag is not 0.
void count_flag(const at::Tensor& count, const at::Tensor& flag);

// One zero-dimensional float32 flag on `device`, exactly 0 or 1: whether any of `flags` is not 0.
at::Tensor any_found(const std::vector<at::Tensor>& flags, c10::Device device);

}  // namespace accelerant::detail
