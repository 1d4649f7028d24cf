// Which of the devices in a device map this machine has.
#pragma once

#include <c10/core/Device.h>

namespace accelerant::paging {

// How many devices of the type there are.
int device_count(c10::DeviceType type);

// A device without an index is there if any of its type is.
bool is_present(c10::Device device);

}  // namespace accelerant::paging
