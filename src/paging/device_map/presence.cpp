#include "paging/device_map/presence.h"

#include "compat/device.h"

namespace accelerant::paging {

int device_count(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU || type == c10::DeviceType::Meta) return 1;
  return compat::is_present(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

bool is_present(c10::Device device) {
  return (device.has_index() ? device.index() : 0) < device_count(device.type());
}

}  // namespace accelerant::paging
