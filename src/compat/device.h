// What devices this libtorch has, without headers of any one of them.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace accelerant::compat {

// Whether there is at least one device of the type.
inline bool is_present(c10::DeviceType device_type) {
  if (device_type == c10::DeviceType::CPU) return true;
  return c10::impl::hasDeviceGuardImpl(device_type) &&
         c10::impl::getDeviceGuardImpl(device_type)->deviceCount() > 0;
}

}  // namespace accelerant::compat
