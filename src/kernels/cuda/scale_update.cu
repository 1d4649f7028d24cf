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

__global__ void count_flag_kernel(std::int64_t* count, const float* flag) {
  if (*flag != 0.0F) ++*count;  // nan counts as an overflow
}

// One access per thread, as each takes about a microsecond over the bus.
static_assert(kMostCopied / sizeof(std::uint64_t) <= 1024);

__global__ void copy_table_kernel(std::uint64_t* to, const std::uint64_t* tables, int words,
                                  const std::int64_t* which) {
  const int word = static_cast<int>(threadIdx.x);
  if (word >= words) return;
  to[word] = tables[(which != nullptr ? *which : 0) * words + word];
}

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

void count_flag(std::int64_t* count, const float* flag, void* stream) {
  count_flag_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(count, flag);
  check(cudaGetLastError(), "count_flag");
}

void copy_table(void* to, const void* tables, std::size_t bytes, const std::int64_t* which,
                void* stream) {
  if (bytes == 0) return;
  const int words = static_cast<int>(bytes / sizeof(std::uint64_t));
  const int threads = (words + 31) / 32 * 32;
  copy_table_kernel<<<1, threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<std::uint64_t*>(to), static_cast<const std::uint64_t*>(tables), words, which);
  check(cudaGetLastError(), "copy_table");
}

void publish(const ScaleState* state, ScaleMirror* mirror, void* stream) {
  publish_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(state, mirror);
  check(cudaGetLastError(), "publish");
}

}  // namespace accelerant::kernels::cuda
