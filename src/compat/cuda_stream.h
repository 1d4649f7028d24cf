// The current CUDA stream, without CUDA's headers where there is none.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace accelerant::compat {

#if defined(ACCELERANT_WITH_CUDA)
// As a plain pointer. Only in builds with our CUDA kernels.
inline void* current_cuda_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}
#endif

// A number for the CUDA graph that what is queued now on the device becomes part of, another one for each capture; 0
// if there is none.
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

}  // namespace accelerant::compat
