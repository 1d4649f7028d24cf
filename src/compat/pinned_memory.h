// Host memory that GPUs copy to and from while the host goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Device.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "compat/device.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace accelerant::compat {

#if defined(ACCELERANT_WITH_CUDA)
namespace detail {

// Memory that could not be freed yet.
struct PinnedLeftovers {
  std::mutex mutex = {};
  std::vector<std::pair<void*, c10::Device>> memory = {};

  static PinnedLeftovers& instance() {
    // Never destroyed: static tensors may end after it.
    static auto* const leftovers = new accelerant::detail::OnePerProcess<PinnedLeftovers>();
    return leftovers->get();
  }
};

// Waits for the device, since a copy may still be running. False if that is forbidden at present,
// because a CUDA graph is being captured.
inline bool wait_for_copies_on(c10::Device device) {
  try {
    if (current_capture(device) != 0) return false;
  } catch (const c10::Error&) {
    return true;  // the device is gone, and the copies with it
  }
  int before = device.index();
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(device.index());
  const cudaError_t result = cudaDeviceSynchronize();
  (void)cudaSetDevice(before);
  (void)cudaGetLastError();
  // Other errors mean the same as above.
  return result != cudaErrorStreamCaptureUnsupported && result != cudaErrorStreamCaptureInvalidated;
}

// Any thread may free the memory, whatever its current device is.
inline void free_pinned(void* memory, c10::Device device) {
  PinnedLeftovers& leftovers = PinnedLeftovers::instance();
  const std::lock_guard lock(leftovers.mutex);
  leftovers.memory.emplace_back(memory, device);
  std::erase_if(leftovers.memory, [](const auto& leftover) {
    if (!wait_for_copies_on(leftover.second)) return false;
    (void)cudaHostUnregister(leftover.first);
    (void)cudaGetLastError();
    std::free(leftover.first);
    return true;
  });
}

inline at::Tensor empty_pinned_exactly(c10::Device device, at::IntArrayRef sizes,
                                       at::IntArrayRef strides, at::ScalarType type,
                                       std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  const cudaError_t failure =
      memory != nullptr ? cudaHostRegister(memory, bytes, cudaHostRegisterPortable) : cudaSuccess;
  if (memory == nullptr || failure != cudaSuccess) {
    (void)cudaGetLastError();
    std::free(memory);
    throw Error(ErrorDetails{
        .problem = "Host memory for copies to and from a GPU cannot be had",
        .expected = c10::str(bytes, " bytes that stay in memory (pinned)"),
        .got = memory == nullptr ? "too little memory" : cudaGetErrorString(failure),
        .hint = "offload less, or let the process have more memory and lock it: ulimit -l"});
  }
  return at::from_blob(
      memory, sizes, strides, [device](void* freed) { free_pinned(freed, device); },
      at::TensorOptions().dtype(type));
}

}  // namespace detail
#endif

// Uninitialised memory for a dense tensor in the layout given by `strides`, pinned if `device` is a
// GPU. Large tensors take as much as they need: what torch's allocator pins is rounded up to a
// power of two. Freeing a large one waits for `device`.
inline at::Tensor empty_on_host_for(c10::Device device, at::IntArrayRef sizes,
                                    at::IntArrayRef strides, at::ScalarType type) {
#if defined(ACCELERANT_WITH_CUDA)
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  std::size_t bytes = c10::elementSize(type);
  for (const int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  if (device.is_cuda() && bytes >= kLarge) {
    return detail::empty_pinned_exactly(device, sizes, strides, type, bytes);
  }
#endif
  return at::empty_strided(sizes, strides,
                           at::TensorOptions().dtype(type).pinned_memory(!device.is_cpu()));
}

}  // namespace accelerant::compat
