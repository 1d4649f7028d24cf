// Turns a CUDA error code into an exception.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace accelerant::kernels::cuda {

inline void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

}  // namespace accelerant::kernels::cuda
