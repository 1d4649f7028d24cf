// Overflow checks of one optimizer's gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

// A parameter whose gradient was checked. Held weakly: a check outlives neither model nor
// optimizer.
struct CheckedParameter {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  std::size_t group = 0;
  std::size_t index = 0;                // within its group
  c10::TensorImpl* gradient = nullptr;  // to see whether it was replaced; never dereferenced
  int64_t gradient_version = 0;         // to see whether it was written
};

// The checked gradients of one device.
struct DeviceCheck {
  at::Tensor found_inf;  // zero-dimensional float32: 0 or 1
  std::vector<CheckedParameter> parameters;
  at::Tensor memory;  // the flag and the counts, so that one fill clears them all

  // Elements that are not finite, one row for each parameter: infinite, nan. Waits for the device.
  at::Tensor counts_on_host() const;
};

enum class Float16Gradients { refused, allowed };

// Checks the gradients of all parameters of `optimizer` and multiplies them by `inv_scale`, a
// zero-dimensional float32 tensor; one entry per device. Empty if no parameter has a gradient.
std::vector<DeviceCheck> unscale_gradients(torch::optim::Optimizer& optimizer,
                                           const at::Tensor& inv_scale, Float16Gradients float16);

// Checks gradients again that were written or replaced since `checks` were made; nothing is scaled.
// `one` is a zero-dimensional float32 1.
void check_changed_gradients(torch::optim::Optimizer& optimizer, const at::Tensor& one,
                             std::vector<DeviceCheck>& checks);

// The tensor on `device`. Waits only when that is the CPU: the value is about to be read there.
at::Tensor copy_to(const at::Tensor& tensor, c10::Device device);

// One zero-dimensional float32 flag on `device`, exactly 0 or 1: whether any of `flags` is not 0.
at::Tensor any_found(const std::vector<at::Tensor>& flags, c10::Device device);

}  // namespace accelerant::detail
