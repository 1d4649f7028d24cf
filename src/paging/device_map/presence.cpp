#include "paging/device_map/presence.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "compat/device.h"

namespace accelerant::paging {

int device_count(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU || type == c10::DeviceType::Meta) return 1;
  return compat::is_present(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

bool is_present(c10::Device device) {
  return (device.has_index() ? device.index() : 0) < device_count(device.type());
}

c10::Device present_device(c10::Device device, const std::string& problem) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  const bool has_type = !device.is_meta() && compat::is_present(device.type());
  if (has_type && !device.has_index()) {
    return c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  if (has_type && is_present(device)) return device;
  throw Error(
      ErrorDetails{.problem = problem,
                   .expected = "a device that this machine and this libtorch have",
                   .got = c10::str(device, device.is_meta() ? ", where tensors have no values"
                                           : has_type       ? ", an index beyond them"
                                                            : ", and none of this kind is here"),
                   .hint = "name one that is there, such as \"cpu\""});
}

}  // namespace accelerant::paging
