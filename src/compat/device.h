// The devices of this libtorch, and their memory, streams and threads, without requiring the
// headers of any of them.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "accelerant/core/error.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace accelerant::compat {

// Whether there is at least one device of the type.
inline bool is_present(c10::DeviceType device_type) {
  if (device_type == c10::DeviceType::CPU) return true;
  return c10::impl::hasDeviceGuardImpl(device_type) &&
         c10::impl::getDeviceGuardImpl(device_type)->deviceCount() > 0;
}

// Frees the memory that the accelerator's allocator caches. Does nothing without an accelerator,
// with an allocator that does not cache, or before its first use.
inline void empty_device_cache() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type || !is_present(*type)) return;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(*type));
  if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
}

#if defined(ACCELERANT_WITH_CUDA)
// As a plain pointer. Only in builds with Accelerant's CUDA kernels.
inline void* current_cuda_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}
#endif

// Identifies the CUDA graph that currently captures work queued on the device, with a new number
// for each capture; 0 if there is none.
inline uint64_t current_capture([[maybe_unused]] c10::Device device) {
#if defined(ACCELERANT_WITH_CUDA)
  if (!device.is_cuda()) return 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  C10_CUDA_CHECK(
      cudaStreamGetCaptureInfo(c10::cuda::getCurrentCUDAStream(device.index()), &status, &capture));
  return status == cudaStreamCaptureStatusNone ? 0 : capture + 1;
#else
  return 0;
#endif
}

// Whether work queued on the stream becomes part of a CUDA graph, whichever thread records it. Also
// if CUDA does not tell, as while a graph is captured on a stream that waits for this one.
inline bool is_captured([[maybe_unused]] const c10::Stream& stream) {
#if defined(ACCELERANT_WITH_CUDA)
  if (stream.device_type() != c10::DeviceType::CUDA) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(c10::cuda::CUDAStream(stream).stream(), &status) != cudaSuccess) {
    (void)cudaGetLastError();  // clears it
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
#else
  return false;
#endif
}

// For pinned host memory that our own kernels read or write. When the tensor is freed, its memory
// is not reused before the stream has finished the work queued so far. torch's own copies do this
// themselves.
inline void hold_for(const c10::Stream& stream, const at::Tensor& pinned) {
  const c10::DataPtr& memory = pinned.storage().data_ptr();
  const bool is_known = at::getHostAllocator(stream.device_type())
                            ->record_event(memory.get(), memory.get_context(), stream);
  if (!is_known) throw Error("A kernel can only write to pinned host memory");
}

// How many threads compute what this thread calls. at::set_num_threads would change the default of
// all future threads; OpenMP's own setting affects only one thread. Different torch builds bring
// different OpenMP libraries, so the function is looked up. Does nothing if there is none.
inline void use_intra_op_threads(int threads) {
  at::internal::lazy_init_num_threads();  // must come before our setting, not after it
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(threads);
}

// Operators called from this thread run in it.
inline void use_one_intra_op_thread() { use_intra_op_threads(1); }

// Leaves processors to threads that keep a GPU busy meanwhile.
inline void spare_intra_op_threads(int spared) {
  at::internal::lazy_init_num_threads();
  use_intra_op_threads(std::max(1, at::get_num_threads() - spared));
}

}  // namespace accelerant::compat
