// The scale and its related values on a device, with a copy on the host that is read without
// waiting.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

#include "kernels/scale_state.h"

namespace accelerant::detail {

// Owns one kernels::ScaleState on `device`. All writes happen in place, so that a captured CUDA
// graph sees them. Not copyable. Not thread-safe, except mirror().
class DeviceScaleState {
 public:
  DeviceScaleState(const kernels::ScaleState& initial, c10::Device device);
  ~DeviceScaleState();
  DeviceScaleState(const DeviceScaleState&) = delete;
  DeviceScaleState& operator=(const DeviceScaleState&) = delete;

  c10::Device device() const { return memory_.device(); }

  // Zero-dimensional float32 tensors that share memory with the state.
  const at::Tensor& scale() const { return scale_; }
  const at::Tensor& inverse_scale() const { return inverse_scale_; }

  // Zero-dimensional float32, sharing memory too: 1 once an update has stopped the training, else
  // 0.
  const at::Tensor& stopped() const { return stopped_; }

  // A zero-dimensional float32 1 on the same device.
  const at::Tensor& one() const { return one_; }

  // Applies the rule once. `found_inf` is one float32 element on the same device.
  void update(const at::Tensor& found_inf, const kernels::UpdateRule& rule);

  void set_scale(float scale);
  void write(const kernels::ScaleState& state);

  // Waits for the device.
  kernels::ScaleState read() const;

  // As of the last update that the device has completed; never waits.
  kernels::ScaleState mirror() const;

 private:
  kernels::ScaleState* on_device() const;
  kernels::ScaleMirror* on_host() const;
  void publish();

  at::Tensor memory_;  // uint8, one ScaleState
  at::Tensor scale_;   // views of it
  at::Tensor inverse_scale_;
  at::Tensor stopped_;
  at::Tensor one_;
  at::Tensor host_mirror_;                  // uint8, one ScaleMirror; pinned if a kernel writes it
  std::optional<c10::Stream> last_stream_;  // where a kernel last wrote the mirror
};

}  // namespace accelerant::detail
