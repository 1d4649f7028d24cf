// Turns a CUDA error code into an exception.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "accelerant/core/error.h"

namespace accelerant::kernels::cuda {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw Error(std::string("CUDA kernel ") + what + ": " + cudaGetErrorString(code));
}

}  // namespace accelerant::kernels::cuda
