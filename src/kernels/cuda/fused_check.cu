// The first pass of the fused step: the norm of all gradients, and whether they are finite.
#include <cstring>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/fused_step.h"

namespace accelerant::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 4;  // accesses in flight per thread
constexpr unsigned kWholeWarp = 0xffffffffU;

// Elements of a gradient that a whole thread block works on.
template <class T>
struct Elements {
  const T* data;
  int size;

  // Calls take(value) for this thread's share of them, always in the same order.
  template <class Take>
  __device__ __forceinline__ void visit(const Take& take) const {
    constexpr int width = 16 / sizeof(T);
    const int thread = static_cast<int>(threadIdx.x);
    int done = 0;
    if (is_aligned(data)) {
      const int packs = size / width;
      const auto* const pack_data = reinterpret_cast<const Pack<T, width>*>(data);
      for (int first = thread; first < packs; first += kBatch * kThreads) {
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
    for (int i = done + thread; i < size; i += kThreads) take(widen(data[i]));
  }
};

// The same for a warp. These are few, so speed does not matter.
struct FewElements {
  const void* data;
  int size;
  ScalarKind kind;

  template <class Take>
  __device__ __forceinline__ void visit(const Take& take) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < size; i += 32) {
      take(load_one(data, i, kind));
    }
  }
};

// The sum over the warp, for its first thread. In a fixed order.
__device__ __forceinline__ double sum_in_warp(double value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(kWholeWarp, value, offset);
  }
  return value;
}

// The sum over the block, for its first thread. In a fixed order.
__device__ double sum_in_block(double value) {
  __shared__ double of_warps[kWarps];
  value = sum_in_warp(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  }
  return sum;
}

// The threads that work on one block together: the whole thread block, or a warp.
struct WholeBlock {
  static __device__ bool all(bool holds) { return __syncthreads_and(holds) != 0; }
  static __device__ double sum(double value) { return sum_in_block(value); }
};
struct OneWarp {
  static __device__ bool all(bool holds) { return __all_sync(kWholeWarp, holds) != 0; }
  static __device__ double sum(double value) { return sum_in_warp(value); }
};

// The result of the first thread is valid for all of them. Not inlined: all variants in one
// function would need too many registers.
template <class Threads, class Elements>
__device__ __noinline__ StepPartial check_elements(const Elements elements, float factor) {
  StepPartial partial{};
  float sum = 0.0F;
  bool finite = true;
  elements.visit([&](float element) {
    const float value = element * factor;
    sum = fmaf(value, value, sum);
    finite &= isfinite(value);
  });
  const bool all_finite = Threads::all(finite);
  const bool overflow = !Threads::all(isfinite(sum));
  double exact = sum;
  if (all_finite && overflow) {  // squares of finite numbers may overflow float
    exact = 0.0;
    elements.visit([&](float element) {
      const double value = element * factor;
      exact = fma(value, value, exact);
    });
  }
  partial.sum_of_squares = Threads::sum(exact);
  if (all_finite) return partial;
  unsigned inf = 0;
  unsigned nan = 0;
  elements.visit([&](float element) {
    const float value = element * factor;
    inf += isinf(value) ? 1U : 0U;
    nan += isnan(value) ? 1U : 0U;
  });
  partial.inf = static_cast<unsigned>(Threads::sum(inf));
  partial.nan = static_cast<unsigned>(Threads::sum(nan));
  return partial;
}

__device__ __forceinline__ void store(const StepTables& tables, std::int32_t index,
                                      const StepPartial& partial, bool is_stopped) {
  if (is_stopped) {
    tables.partials[index].sum_of_squares = partial.sum_of_squares;
  } else {
    tables.partials[index] = partial;
  }
}

__device__ __forceinline__ void check_block(const StepTables& tables, const StepBundle& bundle,
                                            float factor, bool is_stopped) {
  const StepBlock block = bundle.first;
  const StepTensor& tensor = tables.tensors[block.tensor];
  const std::int64_t begin = kStepChunk * block.chunk;
  const int size = static_cast<int>(min(kStepChunk, tensor.numel - begin));
  const void* const gradient = tables.gradients[block.tensor];
  const auto check_as = [&](auto* data) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    return check_elements<WholeBlock>(Elements<T>{data + begin, size}, factor);
  };
  StepPartial partial;
  switch (tensor.gradient_kind) {
    case ScalarKind::float16:
      partial = check_as(static_cast<const __half*>(gradient));
      break;
    case ScalarKind::bfloat16:
      partial = check_as(static_cast<const __nv_bfloat16*>(gradient));
      break;
    default:
      partial = check_as(static_cast<const float*>(gradient));
  }
  if (threadIdx.x == 0) store(tables, bundle.first_block, partial, is_stopped);
}

// A small block is one chunk of its tensor, the last or the only one.
__device__ __forceinline__ void check_small_block(const StepTables& tables, std::int32_t index,
                                                  float factor, bool is_stopped) {
  const StepBlock block = tables.blocks[index];
  const StepTensor& tensor = tables.tensors[block.tensor];
  const std::int64_t begin = kStepChunk * block.chunk;
  const std::int64_t width = tensor.gradient_kind == ScalarKind::float32 ? 4 : 2;
  const FewElements elements{
      .data = static_cast<const char*>(tables.gradients[block.tensor]) + begin * width,
      .size = static_cast<int>(tensor.numel - begin),
      .kind = tensor.gradient_kind};
  const StepPartial partial = check_elements<OneWarp>(elements, factor);
  if (threadIdx.x % 32 == 0) store(tables, index, partial, is_stopped);
}

__device__ StepPartial read(const StepPartial* partial) {
  const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(partial));  // written by other blocks
  StepPartial value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

__global__ void __launch_bounds__(kThreads, 2)
    check_kernel(const StepTables tables, std::int32_t blocks, const StepFactors factors,
                 const float* stopped, StepOutcome* outcome, unsigned* counter) {
  static_assert(sizeof(StepPartial) == sizeof(uint4));
  static_assert(kMostInBundle <= kWarps);
  const bool is_stopped = stopped != nullptr && *stopped != 0.0F;
  if (blocks > 0) {
    const StepBundle bundle = tables.bundles[blockIdx.x];
    const float factor = static_cast<float>(product_of(factors));
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (bundle.blocks == 1) {
      check_block(tables, bundle, factor, is_stopped);
    } else if (warp < bundle.blocks) {
      check_small_block(tables, bundle.first_block + warp, factor, is_stopped);
    }
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
  outcome->found_inf = all_finite && !is_stopped ? 0.0F : 1.0F;
  outcome->exact_norm = sqrt(total);
  outcome->norm = static_cast<float>(outcome->exact_norm);
}

}  // namespace

void check_gradients(const StepTables& tables, std::int32_t blocks, std::int32_t bundles,
                     const StepFactors& factors, const float* stopped, StepOutcome* outcome,
                     void* scratch, void* stream) {
  const unsigned grid = bundles > 0 ? static_cast<unsigned>(bundles) : 1U;
  check_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      tables, blocks, factors, stopped, outcome, static_cast<unsigned*>(scratch));
  check(cudaGetLastError(), "check_gradients");
}

}  // namespace accelerant::kernels::cuda
