// Which of the devices in a device map this machine has.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace accelerant::paging {

// How many devices of the type there are.
int device_count(c10::DeviceType type);

// A device without an index is there if any of its type is.
bool is_present(c10::Device device);

// With its index. Throws Error, which begins with `problem`, if this machine has no such device, or
// if tensors have no values there.
c10::Device present_device(c10::Device device, const std::string& problem);

}  // namespace accelerant::paging
