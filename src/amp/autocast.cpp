#include "accelerant/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include "accelerant/core/error.h"
#include "compat/device.h"

namespace accelerant {
namespace {

std::string name_of(c10::DeviceType device_type) {
  return c10::DeviceTypeName(device_type, /*lower_case=*/true);
}

void require_known(c10::DeviceType device_type) {
  if (is_autocast_available(device_type)) return;
  throw Error(ErrorDetails{.problem = "Autocast is not available for this device type",
                           .expected = "a device type with autocast support (cpu, cuda, ...)",
                           .got = name_of(device_type),
                           .hint = "run this part without AutocastGuard"});
}

void require_present(c10::DeviceType device_type) {
  if (compat::is_present(device_type)) return;
  throw Error(ErrorDetails{.problem = "Autocast cannot be enabled for a missing device",
                           .expected = "a " + name_of(device_type) + " device",
                           .got = "no such device visible to libtorch",
                           .hint = "pass .device_type = at::kCPU, or .enabled = false"});
}

void require_16_bit(c10::ScalarType dtype, c10::DeviceType device_type) {
  if (dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16) return;
  throw Error(
      ErrorDetails{.problem = "Autocast on " + name_of(device_type) + " does not support this type",
                   .expected = "Half or BFloat16",
                   .got = c10::toString(dtype),
                   .hint = "for plain float32 pass .enabled = false"});
}

}  // namespace

bool is_autocast_available(c10::DeviceType device_type) {
  return at::autocast::is_autocast_available(device_type);
}

bool is_autocast_enabled(c10::DeviceType device_type) {
  require_known(device_type);
  return at::autocast::is_autocast_enabled(device_type);
}

c10::ScalarType get_autocast_dtype(c10::DeviceType device_type) {
  require_known(device_type);
  return at::autocast::get_autocast_dtype(device_type);
}

AutocastState AutocastState::capture() {
  AutocastState state;
  static_assert(std::tuple_size_v<decltype(state.devices_)> >=
                at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size());
  for (const c10::DeviceType device_type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    state.devices_[state.count_++] = capture(device_type).devices_[0];
  }
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

AutocastState AutocastState::capture(c10::DeviceType device_type) {
  AutocastState state;
  state.devices_[0] = {.device_type = device_type,
                       .dtype = at::autocast::get_autocast_dtype(device_type),
                       .enabled = at::autocast::is_autocast_enabled(device_type)};
  state.count_ = 1;
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::apply() const {
  for (std::size_t i = 0; i < count_; ++i) {
    at::autocast::set_autocast_dtype(devices_[i].device_type, devices_[i].dtype);
    at::autocast::set_autocast_enabled(devices_[i].device_type, devices_[i].enabled);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

AutocastGuard::AutocastGuard(const AutocastOptions& options) {
  require_known(options.device_type);
  outer_ = AutocastState::capture(options.device_type);

  AutocastState inner = outer_;
  inner.devices_[0].enabled = options.enabled;
  inner.devices_[0].dtype = options.dtype.value_or(outer_.devices_[0].dtype);
  inner.cache_enabled_ = options.cache_enabled.value_or(outer_.cache_enabled_);
  if (options.enabled) {
    require_present(options.device_type);
    require_16_bit(inner.devices_[0].dtype, options.device_type);
  }

  inner.apply();
  at::autocast::increment_nesting();
}

AutocastGuard::AutocastGuard(const AutocastState& state) : outer_(AutocastState::capture()) {
  state.apply();
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  // A cached cast that outlived the outermost scope would go stale with the next optimizer step.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  outer_.apply();
}

}  // namespace accelerant
