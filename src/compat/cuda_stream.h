// The current CUDA stream, without CUDA's headers where there is none.
#pragma once

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/core/Device.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace accelerant::compat {

#if defined(ACCELERANT_WITH_CUDA)
// As a plain pointer. Only in builds with our CUDA kernels.
inline void* current_cuda_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}
#endif

// Whether what is queued now becomes part of a CUDA graph.
inline bool is_capturing() {
#if defined(ACCELERANT_WITH_CUDA)
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#else
  return false;
#endif
}

}  // namespace accelerant::compat
