#include "amp/scale_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/record_stream.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "amp/unscale.h"
#include "compat/device.h"
#include "kernels/amp_kernels.h"

namespace accelerant::detail {
namespace {

constexpr auto kStateBytes = static_cast<int64_t>(sizeof(kernels::ScaleState));
constexpr auto kMirrorBytes = static_cast<int64_t>(sizeof(kernels::ScaleMirror));

at::Tensor host_bytes(const kernels::ScaleState& state) {
  at::Tensor bytes = at::empty({kStateBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &state, sizeof(state));
  return bytes;
}

kernels::ScaleState from_host_bytes(const at::Tensor& bytes) {
  kernels::ScaleState state;
  std::memcpy(&state, bytes.const_data_ptr(), sizeof(state));
  return state;
}

// The float at an offset in a block of bytes, sharing its memory.
at::Tensor float_at(const at::Tensor& bytes, std::size_t offset) {
  return bytes.narrow(0, static_cast<int64_t>(offset), sizeof(float)).view(at::kFloat).squeeze(0);
}

}  // namespace

DeviceScaleState::DeviceScaleState(const kernels::ScaleState& initial, c10::Device device) {
  // The first loss may come from an evaluation, but the scale must still work for training.
  const c10::InferenceMode no_inference(false);
  memory_ = host_bytes(initial).to(device);
  scale_ = float_at(memory_, offsetof(kernels::ScaleState, scale));
  inverse_scale_ = float_at(memory_, offsetof(kernels::ScaleState, inv_scale));
  stopped_ = float_at(memory_, offsetof(kernels::ScaleState, stopped));
  one_ = at::ones({}, scale_.options());
  const bool pinned = has_kernels(memory_.device()) && !memory_.is_cpu();
  host_mirror_ =
      at::zeros({kMirrorBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
  kernels::publish(initial, on_host());
}

DeviceScaleState::~DeviceScaleState() {
  if (!last_stream_) return;
  // A pending kernel may still write to the mirror.
  try {
    memory_.record_stream(*last_stream_);
    compat::hold_for(*last_stream_, host_mirror_);
  } catch (const std::exception&) {
    // The device is gone, and its kernels with it.
  }
}

kernels::ScaleState* DeviceScaleState::on_device() const {
  return static_cast<kernels::ScaleState*>(memory_.mutable_data_ptr());
}

kernels::ScaleMirror* DeviceScaleState::on_host() const {
  return static_cast<kernels::ScaleMirror*>(host_mirror_.mutable_data_ptr());
}

void DeviceScaleState::update(const at::Tensor& found_inf, const kernels::UpdateRule& rule) {
#if defined(ACCELERANT_WITH_CUDA)
  if (memory_.is_cuda()) {
    const c10::OptionalDeviceGuard guard(device());
    last_stream_ = c10::impl::VirtualGuardImpl(device().type()).getStream(device());
    // A loss that was scaled but has not run backward yet must notice that its scale has changed.
    memory_.unsafeGetTensorImpl()->bump_version();
    kernels::cuda::update_scale(on_device(), found_inf.const_data_ptr<float>(), rule, on_host(),
                                compat::current_cuda_stream(device()));
    return;
  }
#endif
  kernels::ScaleState state = read();
  kernels::update_scale(state, found_inf.item<float>() != 0.0F, rule);
  write(state);
}

void DeviceScaleState::set_scale(float value) {
  kernels::ScaleState state{};
  kernels::set_scale(state, value);
  scale_.fill_(state.scale);
  inverse_scale_.fill_(state.inv_scale);
  publish();
}

void DeviceScaleState::write(const kernels::ScaleState& state) {
  memory_.copy_(host_bytes(state));
  publish();
}

void DeviceScaleState::publish() {
#if defined(ACCELERANT_WITH_CUDA)
  if (memory_.is_cuda()) {
    const c10::OptionalDeviceGuard guard(device());
    last_stream_ = c10::impl::VirtualGuardImpl(device().type()).getStream(device());
    kernels::cuda::publish(on_device(), on_host(), compat::current_cuda_stream(device()));
    return;
  }
#endif
  kernels::publish(read(), on_host());
}

kernels::ScaleState DeviceScaleState::read() const { return from_host_bytes(memory_.cpu()); }

kernels::ScaleState DeviceScaleState::mirror() const {
  const kernels::ScaleMirror* const mirror = on_host();
  kernels::ScaleState state;
  // A write takes well under a microsecond. If a kernel died during one, return what is there.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto before = __atomic_load_n(&mirror->sequence, __ATOMIC_ACQUIRE);
    std::memcpy(&state, &mirror->state, sizeof(state));
    std::atomic_thread_fence(std::memory_order_acquire);
    const auto after = __atomic_load_n(&mirror->sequence, __ATOMIC_ACQUIRE);
    if (before == after && before % 2 == 0) break;
  }
  return state;
}

}  // namespace accelerant::detail
