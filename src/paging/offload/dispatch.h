// What a device map means for parameters that come and go.
#pragma once

#include <optional>

#include "accelerant/paging/device_map.h"
#include "paging/offload/homes.h"

namespace accelerant::paging {

// Where a model with this map computes: the wish, checked, or else the map's first GPU, or the CPU.
c10::Device main_device_of(const DeviceMap& device_map, std::optional<c10::Device> wish);

// Where the map places each tensor. The map must live as long as the result.
HomeOf homes_in(const DeviceMap& device_map, c10::Device main_device);

}  // namespace accelerant::paging
