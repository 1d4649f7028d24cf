// The first pass of the fused step: norm of all gradients, and whether they are finite.
#include <cstring>

#include "kernels/cuda/check.h"
#include "kernels/cuda/step_memory.cuh"
#include "kernels/fused_step.h"

namespace accelerant::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 4;  // accesses that a thread has under way

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// Calls take(value) for this thread's share of the elements, always in the same order.
template <class T, class Take>
__device__ __forceinline__ void for_each_element(const T* data, int size, const Take& take) {
  constexpr int width = 16 / sizeof(T);
  int done = 0;
  if (is_aligned(data)) {
    const int packs = size / width;
    const auto* const pack_data = reinterpret_cast<const Pack<T, width>*>(data);
    for (int first = static_cast<int>(threadIdx.x); first < packs; first += kBatch * kThreads) {
      Pack<T, width> batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = first + i * kThreads;
        if (index < packs) batch[i] = pack_data[index];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * kThreads >= packs) break;
#pragma unroll
        for (int lane = 0; lane < width; ++lane) take(widen(batch[i].values[lane]));
      }
    }
    done = packs * width;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < size; i += kThreads) take(widen(data[i]));
}

// The sum over the block, for its first thread. In a fixed order.
__device__ double sum_in_block(double value) {
  __shared__ double of_warps[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffU, value, offset);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  }
  return sum;
}

// What the first thread returns holds for the block.
template <class T>
__device__ StepPartial check_block(const T* data, int size, float factor) {
  StepPartial partial{};
  float sum = 0.0F;
  bool finite = true;
  for_each_element(data, size, [&](float element) {
    const float value = element * factor;
    sum = fmaf(value, value, sum);
    finite &= isfinite(value);
  });
  const bool all_finite = __syncthreads_and(finite) != 0;
  const bool overflow = __syncthreads_or(!isfinite(sum)) != 0;
  double exact = sum;
  if (all_finite && overflow) {  // squares of finite numbers may be too large for float
    exact = 0.0;
    for_each_element(data, size, [&](float element) {
      const double value = element * factor;
      exact = fma(value, value, exact);
    });
  }
  partial.sum_of_squares = sum_in_block(exact);
  if (all_finite) return partial;
  unsigned inf = 0;
  unsigned nan = 0;
  for_each_element(data, size, [&](float element) {
    const float value = element * factor;
    inf += isinf(value) ? 1U : 0U;
    nan += isnan(value) ? 1U : 0U;
  });
  partial.inf = static_cast<unsigned>(sum_in_block(inf));
  partial.nan = static_cast<unsigned>(sum_in_block(nan));
  return partial;
}

__device__ StepPartial read(const StepPartial* partial) {
  const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(partial));  // written by other blocks
  StepPartial value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

__global__ void __launch_bounds__(kThreads, 2)
    check_kernel(const StepTables tables, std::int32_t blocks, const StepFactors factors,
                 StepOutcome* outcome, unsigned* counter) {
  static_assert(sizeof(StepPartial) == sizeof(uint4));
  if (blocks > 0) {
    const StepBlock block = tables.blocks[blockIdx.x];
    const StepTensor& tensor = tables.tensors[block.tensor];
    const float factor = static_cast<float>(product_of(factors));
    const std::int64_t begin = kStepChunk * block.chunk;
    const int size = static_cast<int>(min(kStepChunk, tensor.numel - begin));
    const void* const gradient = tables.gradients[block.tensor];
    StepPartial partial;
    switch (tensor.gradient_kind) {
      case ScalarKind::float16:
        partial = check_block(static_cast<const __half*>(gradient) + begin, size, factor);
        break;
      case ScalarKind::bfloat16:
        partial = check_block(static_cast<const __nv_bfloat16*>(gradient) + begin, size, factor);
        break;
      default:
        partial = check_block(static_cast<const float*>(gradient) + begin, size, factor);
    }
    if (threadIdx.x == 0) tables.partials[blockIdx.x] = partial;
  }

  if (!is_last_block(counter)) return;
  double sum = 0.0;
  bool finite = true;
#pragma unroll 4
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < blocks; i += kThreads) {
    const StepPartial partial = read(tables.partials + i);
    sum += partial.sum_of_squares;
    finite &= (partial.inf | partial.nan) == 0;
  }
  const bool all_finite = __syncthreads_and(finite) != 0;
  const double total = sum_in_block(sum);
  if (threadIdx.x != 0) return;
  outcome->found_inf = all_finite ? 0.0F : 1.0F;
  outcome->exact_norm = sqrt(total);
  outcome->norm = static_cast<float>(outcome->exact_norm);
}

}  // namespace

void check_gradients(const StepTables& tables, std::int32_t blocks, const StepFactors& factors,
                     StepOutcome* outcome, void* scratch, void* stream) {
  const unsigned grid = blocks > 0 ? static_cast<unsigned>(blocks) : 1U;
  check_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      tables, blocks, factors, outcome, static_cast<unsigned*>(scratch));
  check(cudaGetLastError(), "check_gradients");
}

}  // namespace accelerant::kernels::cuda
