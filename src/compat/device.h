// What devices this libtorch has, and their memory, streams and threads, without headers of any one
// of them in a build that has none.
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

// Frees what the accelerator's allocator caches. Nothing happens without an accelerator, with an
// allocator that caches nothing, or before its first use.
inline void empty_device_cache() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type || !is_present(*type)) return;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(*type));
  if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
}

#if defined(ACCELERANT_WITH_CUDA)
// As a plain pointer. Only in builds with our CUDA kernels.
inline void* current_cuda_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}
#endif

// A number for the CUDA graph that what is queued now on the device becomes part of, another one
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

// For pinned host memory that kernels of our own read or write: when the tensor is gone, it is not
// handed out to others before the stream has done what was queued on it until then. torch's own
// copies see to that by themselves.
inline void hold_for(const c10::Stream& stream, const at::Tensor& pinned) {
  const c10::DataPtr& memory = pinned.storage().data_ptr();
  const bool is_known = at::getHostAllocator(stream.device_type())
                            ->record_event(memory.get(), memory.get_context(), stream);
  if (!is_known) throw Error("Host memory that a kernel is to write is not pinned");
}

// Operators called from this thread run in it. at::set_num_threads would change the default of all
// threads to come; OpenMP's own setting is of one thread only. Which OpenMP library torch brought
// differs between its builds, so it is looked up; where there is none, nothing is done.
inline void use_one_intra_op_thread() {
  at::internal::lazy_init_num_threads();  // torch's own setting, which must not come after ours
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

}  // namespace accelerant::compat
