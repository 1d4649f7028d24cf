// The current CUDA stream as a plain pointer. Only in builds with our CUDA kernels.
#pragma once

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

namespace accelerant::compat {

inline void* current_cuda_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

}  // namespace accelerant::compat
#endif
