#include "kernels/cross_entropy.h"

#undef NDEBUG  // kernels report errors by assert
#include <cassert>
#include <cstdio>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/memory.cuh"

namespace accelerant::kernels::cuda {
namespace {

constexpr int kThreads = 256;  // per block; a block has one row, or one row per warp
constexpr int kThreadsOfSum = 1024;
constexpr std::int32_t kMostClassesOfWarp = 1024;
constexpr unsigned kWholeWarp = 0xffffffffU;

// A row, divided so that most of it can be read and written in accesses of 16 bytes.
template <class T>
struct Row {
  static constexpr int kWidth = 16 / sizeof(T);
  using Packed = Pack<T, kWidth>;

  const T* data;
  int size;
  int head;   // elements before the first pack
  int packs;  // followed by the remaining elements

  __device__ Row(const T* row, int classes) : data(row), size(classes) {
    const auto beyond = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = min(beyond == 0 ? 0 : kWidth - beyond, size);
    packs = (size - head) / kWidth;
  }

  __device__ const Packed* pack(int i) const {
    return reinterpret_cast<const Packed*>(data + head) + i;
  }
  // The elements outside the packs.
  __device__ int loose() const { return size - packs * kWidth; }
  __device__ int index_of_loose(int i) const { return i < head ? i : i + packs * kWidth; }
};

// As precise as the elements: 16-bit values do not need the last bits of float32.
template <class T>
__device__ __forceinline__ float exponential(float value) {
  return std::is_same_v<T, float> ? expf(value) : __expf(value);
}

// Over some logits of a row.
struct Sums {
  float max;
  float exponentials;  // of logit - max
  float logits;        // minus an offset common to the row; only with label smoothing
};

// What is subtracted in exponents: 0 as long as there is no finite logit.
__device__ __forceinline__ float shift_for(float max) { return max == -INFINITY ? 0.0F : max; }

template <class T, bool smooths, int count>
__device__ __forceinline__ void add(Sums& sums, const float (&values)[count], float origin) {
  float max = sums.max;
#pragma unroll
  for (int i = 0; i < count; ++i) max = fmaxf(max, values[i]);
  const float shift = shift_for(max);
  float exponentials = sums.exponentials * exponential<T>(sums.max - shift);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    exponentials += exponential<T>(values[i] - shift);
    if (smooths) sums.logits += values[i] - origin;
  }
  sums.max = max;
  sums.exponentials = exponentials;
}

__device__ __forceinline__ Sums joined(const Sums& left, const Sums& right) {
  const float max = fmaxf(left.max, right.max);
  const float shift = shift_for(max);
  return {.max = max,
          .exponentials = left.exponentials * expf(left.max - shift) +
                          right.exponentials * expf(right.max - shift),
          .logits = left.logits + right.logits};
}

// The result is for the first thread of the warp. Like all sums here, in a fixed order.
__device__ __forceinline__ Sums joined_in_warp(Sums sums) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Sums other{.max = __shfl_down_sync(kWholeWarp, sums.max, offset),
                     .exponentials = __shfl_down_sync(kWholeWarp, sums.exponentials, offset),
                     .logits = __shfl_down_sync(kWholeWarp, sums.logits, offset)};
    sums = joined(sums, other);
  }
  return sums;
}

// The result is for the first of the threads that work on a row: a warp, or the whole block.
template <int threads>
__device__ __forceinline__ Sums joined_in_row(Sums sums) {
  sums = joined_in_warp(sums);
  if constexpr (threads > 32) {
    __shared__ Sums of_warps[threads / 32];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sums;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < threads / 32; ++warp) sums = joined(sums, of_warps[warp]);
    }
  }
  return sums;
}

template <int threads>
__device__ __forceinline__ std::int64_t own_row() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / threads;
}

// Aborts all work on the device, as torch's own kernel does.
__device__ void refuse_class(std::int64_t target, std::int64_t row, std::int32_t classes) {
  printf("accelerant: cross_entropy: the target of row %lld is %lld, but there are %d classes\n",
         static_cast<long long>(row), static_cast<long long>(target), classes);
  assert(!"every target must be a class or ignore_index");
}

template <class T, int threads, bool smooths>
__global__ void loss_kernel(const LogitRows logits, const ClassTargets targets,
                            RowStatistics* statistics, float* losses) {
  const std::int64_t index = own_row<threads>();
  if (index >= logits.rows) return;  // together with all threads of the row
  const Row<T> row(static_cast<const T*>(logits.data) + index * logits.stride, logits.classes);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  // Large logits that are close together must keep the digits in which they differ.
  const float first = widen(row.data[0]);
  const float origin = isfinite(first) ? first : 0.0F;
  Sums sums{.max = -INFINITY, .exponentials = 0.0F, .logits = 0.0F};
  for (int i = thread; i < row.packs; i += threads) {
    const auto pack = *row.pack(i);
    float values[Row<T>::kWidth];
#pragma unroll
    for (int lane = 0; lane < Row<T>::kWidth; ++lane) values[lane] = widen(pack.values[lane]);
    add<T, smooths>(sums, values, origin);
  }
  for (int i = thread; i < row.loose(); i += threads) {
    const float value[1] = {widen(row.data[row.index_of_loose(i)])};
    add<T, smooths>(sums, value, origin);
  }
  sums = joined_in_row<threads>(sums);
  if (thread != 0) return;

  const float log_sum = logf(sums.exponentials);
  statistics[index] = {.max = sums.max, .log_sum = log_sum};
  const std::int64_t target = targets.classes[index];
  if (target == targets.ignore_index) {
    losses[index] = 0.0F;
    return;
  }
  if (target < 0 || target >= logits.classes) refuse_class(target, index, logits.classes);
  float loss = log_sum - (widen(row.data[target]) - sums.max);
  if (smooths) {
    const auto smoothing = static_cast<float>(targets.label_smoothing);
    const float mean = sums.logits / static_cast<float>(logits.classes);
    const float of_all = log_sum + ((sums.max - origin) - mean);
    loss = (1.0F - smoothing) * loss + smoothing * of_all;
  }
  losses[index] = loss;
}

__global__ void reduce_kernel(const float* losses, std::int64_t rows, const ClassTargets targets,
                              LossReduction reduction, float* loss, float* factor) {
  double sum = 0.0;
  unsigned long long count = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kThreadsOfSum) {
    sum += losses[i];
    count += targets.classes[i] == targets.ignore_index ? 0U : 1U;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(kWholeWarp, sum, offset);
    count += __shfl_down_sync(kWholeWarp, count, offset);
  }
  __shared__ double sums[kThreadsOfSum / 32];
  __shared__ unsigned long long counts[kThreadsOfSum / 32];
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
    counts[threadIdx.x / 32] = count;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreadsOfSum / 32; ++warp) {
    sum += sums[warp];
    count += counts[warp];
  }
  const bool is_mean = reduction == LossReduction::mean;
  // With no rows the mean is nan, as in torch.
  *loss = static_cast<float>(is_mean ? sum / static_cast<double>(count) : sum);
  *factor = is_mean ? static_cast<float>(1.0 / static_cast<double>(count)) : 1.0F;
}

template <class T>
__device__ __forceinline__ T narrowed(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// The gradients of the logits of one row.
struct RowGradient {
  RowStatistics statistics;
  float factor;
  int target;
  float of_target;  // subtracted from the probability of the target class
  float of_all;     // common to all classes
  bool is_ignored;

  __device__ RowGradient(const LogitRows& logits, const ClassTargets& targets,
                         const RowStatistics& of_row, const LossGradient& of_losses,
                         std::int64_t index)
      : statistics(of_row) {
    const auto smoothing = static_cast<float>(targets.label_smoothing);
    factor = of_losses.upstream[index * of_losses.stride];
    if (of_losses.factor != nullptr) factor *= *of_losses.factor;
    is_ignored = targets.classes[index] == targets.ignore_index;
    target = static_cast<int>(targets.classes[index]);
    of_target = 1.0F - smoothing;
    of_all = smoothing / static_cast<float>(logits.classes);
  }

  template <class T>
  __device__ __forceinline__ float at(int index, float logit) const {
    if (is_ignored) return 0.0F;
    float gradient = exponential<T>((logit - statistics.max) - statistics.log_sum) - of_all;
    if (index == target) gradient -= of_target;
    return gradient * factor;
  }
};

template <class T, int threads>
__global__ void gradient_kernel(const LogitRows logits, const ClassTargets targets,
                                const RowStatistics* statistics, const LossGradient of_losses,
                                T* gradients) {
  const std::int64_t index = own_row<threads>();
  if (index >= logits.rows) return;
  const Row<T> row(static_cast<const T*>(logits.data) + index * logits.stride, logits.classes);
  const RowGradient gradient(logits, targets, statistics[index], of_losses, index);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  T* const results = gradients + index * logits.classes;
  const auto compute = [&](int i) {
    results[i] = narrowed<T>(gradient.template at<T>(i, widen(row.data[i])));
  };
  if (!is_aligned(results + row.head)) {  // aligned differently than the logits
    for (int i = thread; i < row.size; i += threads) compute(i);
    return;
  }
  using Packed = typename Row<T>::Packed;
  for (int i = thread; i < row.packs; i += threads) {
    const int first = row.head + i * Row<T>::kWidth;
    const Packed pack = *row.pack(i);
    Packed result;
#pragma unroll
    for (int lane = 0; lane < Row<T>::kWidth; ++lane) {
      const float logit = widen(pack.values[lane]);
      result.values[lane] = narrowed<T>(gradient.template at<T>(first + lane, logit));
    }
    *reinterpret_cast<Packed*>(results + first) = result;
  }
  for (int i = thread; i < row.loose(); i += threads) compute(row.index_of_loose(i));
}

// Calls launch(null pointer of the type, constant number of threads per row, blocks).
template <class Launch>
void launch_for(const LogitRows& logits, const char* what, const Launch& launch) {
  constexpr int rows_of_block = kThreads / 32;
  const auto launch_as = [&](auto* type) {
    if (logits.classes > kMostClassesOfWarp) {
      launch(type, std::integral_constant<int, kThreads>(), static_cast<unsigned>(logits.rows));
    } else {
      launch(type, std::integral_constant<int, 32>(),
             static_cast<unsigned>((logits.rows + rows_of_block - 1) / rows_of_block));
    }
  };
  switch (logits.kind) {
    case ScalarKind::float16:
      launch_as(static_cast<__half*>(nullptr));
      break;
    case ScalarKind::bfloat16:
      launch_as(static_cast<__nv_bfloat16*>(nullptr));
      break;
    default:
      launch_as(static_cast<float*>(nullptr));
  }
  check(cudaGetLastError(), what);
}

}  // namespace

void cross_entropy(const LogitRows& logits, const ClassTargets& targets, RowStatistics* statistics,
                   float* losses, void* stream) {
  launch_for(logits, "cross_entropy", [&](auto* type, auto of_row, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int threads_of_row = decltype(of_row)::value;
    const auto kernel = targets.label_smoothing == 0.0 ? loss_kernel<T, threads_of_row, false>
                                                       : loss_kernel<T, threads_of_row, true>;
    kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(logits, targets, statistics,
                                                                       losses);
  });
}

void reduce_losses(const float* losses, std::int64_t rows, const ClassTargets& targets,
                   LossReduction reduction, float* loss, float* factor, void* stream) {
  reduce_kernel<<<1, kThreadsOfSum, 0, static_cast<cudaStream_t>(stream)>>>(
      losses, rows, targets, reduction, loss, factor);
  check(cudaGetLastError(), "reduce_losses");
}

void cross_entropy_backward(const LogitRows& logits, const ClassTargets& targets,
                            const RowStatistics* statistics, const LossGradient& of_losses,
                            void* gradient, void* stream) {
  launch_for(logits, "cross_entropy_backward", [&](auto* type, auto of_row, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(type)>;
    gradient_kernel<T, decltype(of_row)::value>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            logits, targets, statistics, of_losses, static_cast<T*>(gradient));
  });
}

}  // namespace accelerant::kernels::cuda
