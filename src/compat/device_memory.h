// How much memory a device has free.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>

#include "compat/torch_version.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

namespace accelerant::compat {

struct DeviceMemory {
  int64_t free = 0;             // bytes
  bool is_host_memory = false;  // the device has none of its own (integrated GPUs)
};

// Empty if the device is not usable or does not tell.
inline std::optional<DeviceMemory> device_memory(c10::Device device) {
#if defined(ACCELERANT_WITH_CUDA)
  if (device.is_cuda()) {
    try {
      const c10::cuda::CUDAGuard guard(device);
      std::size_t free = 0;
      std::size_t total = 0;
      int is_integrated = 0;
      if (cudaMemGetInfo(&free, &total) != cudaSuccess ||
          cudaDeviceGetAttribute(&is_integrated, cudaDevAttrIntegrated, device.index()) !=
              cudaSuccess) {
        (void)cudaGetLastError();  // clears it
        return std::nullopt;
      }
      return DeviceMemory{.free = static_cast<int64_t>(free), .is_host_memory = is_integrated != 0};
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }
#elif ACCELERANT_TORCH_AT_LEAST(2, 13)
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator != nullptr) {
    try {
      return DeviceMemory{.free =
                              static_cast<int64_t>(allocator->getMemoryInfo(device.index()).first)};
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }
#endif
  return std::nullopt;
}

}  // namespace accelerant::compat
