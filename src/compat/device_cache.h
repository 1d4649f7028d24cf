// The caching allocator of the accelerator, whichever this libtorch has.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "compat/device.h"

namespace accelerant::compat {

// Frees what the accelerator's allocator caches. Nothing happens without an accelerator, with an
// allocator that caches nothing, or before its first use.
inline void empty_device_cache() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type || !is_present(*type)) return;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(*type));
  if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
}

}  // namespace accelerant::compat
