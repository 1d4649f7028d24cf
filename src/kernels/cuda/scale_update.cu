#include "kernels/amp_kernels.h"
#include "kernels/cuda/check.h"

namespace accelerant::kernels::cuda {
namespace {

__global__ void update_scale_kernel(ScaleState* state, const float* found_inf, UpdateRule rule,
                                    ScaleMirror* mirror) {
  kernels::update_scale(*state, *found_inf != 0.0F, rule);  // nan counts as an overflow
  kernels::publish(*state, mirror);
}

__global__ void copy_flag_kernel(const float* flag, float* host) { *host = *flag; }

__global__ void publish_kernel(const ScaleState* state, ScaleMirror* mirror) {
  kernels::publish(*state, mirror);
}

}  // namespace

void update_scale(ScaleState* state, const float* found_inf, const UpdateRule& rule,
                  ScaleMirror* mirror, void* stream) {
  update_scale_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(state, found_inf, rule,
                                                                      mirror);
  check(cudaGetLastError(), "update_scale");
}

void copy_flag(const float* flag, float* host, void* stream) {
  copy_flag_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(flag, host);
  check(cudaGetLastError(), "copy_flag");
}

void publish(const ScaleState* state, ScaleMirror* mirror, void* stream) {
  publish_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(state, mirror);
  check(cudaGetLastError(), "publish");
}

}  // namespace accelerant::kernels::cuda
