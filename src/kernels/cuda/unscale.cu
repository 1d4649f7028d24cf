#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/amp_kernels.h"
#include "kernels/cuda/check.h"

namespace accelerant::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kChunk = 32768;  // elements per block

// A launch carries its table of tensors in the kernel's arguments: no copy to the device, nothing
// to keep alive, and it can be captured in a graph. Launch time grows with the size of the
// arguments, so there is a small table for most models and a large one for models with many tensors
// (since CUDA 12.1 arguments may take 32 kB).
constexpr int kSmallTable = 160;
constexpr int kLargeTable = 1344;

template <int size>
struct Table {
  void* data[size];
  std::int64_t numel[size];
  std::int32_t row[size];
  std::int32_t first_block[size + 1];  // first_block[i] .. first_block[i + 1] belong to tensor i
  std::int32_t tensors;
};
static_assert(sizeof(Table<kSmallTable>) + 64 <= 4096);
static_assert(sizeof(Table<kLargeTable>) + 64 <= 32764);

template <class T>
struct Math {  // the type of the product
  using type = float;
};
template <>
struct Math<double> {
  using type = double;
};

template <class T>
__device__ typename Math<T>::type widen(T value) {
  return static_cast<typename Math<T>::type>(value);
}

template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T values[width];
};

// Non-finite elements found by one thread, and then by one block.
struct Found {
  unsigned inf;
  unsigned nan;
};

template <class T>
__device__ __forceinline__ void unscale_one(T& value, float inv_scale, bool write, Found& found) {
  using M = typename Math<T>::type;
  M result = widen(value) * static_cast<M>(inv_scale);
  if (write) {
    value = static_cast<T>(result);
    result = widen(value);  // rounding to 16 bits may overflow too
  }
  if (isfinite(result)) return;
  isnan(result) ? ++found.nan : ++found.inf;
}

template <class T, int size>
__global__ void __launch_bounds__(kThreads)
    unscale_kernel(const __grid_constant__ Table<size> table, Writing writing,
                   const float* inv_scale_pointer, float* found_inf, NonFiniteCount* counts) {
  constexpr int width = 16 / sizeof(T);
  const float inv_scale = *inv_scale_pointer;
  const bool write = writing == Writing::unscaled_values && inv_scale != 1.0F;
  const int block = static_cast<int>(blockIdx.x);

  // The last tensor whose first block is not after this one.
  int low = 0;
  int high = table.tensors - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  T* const data = static_cast<T*>(table.data[low]);
  const std::int64_t begin = kChunk * (block - table.first_block[low]);
  const std::int64_t end = min(begin + kChunk, table.numel[low]);

  Found found{};
  std::int64_t scalar_begin = begin;
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {
    const std::int64_t packs = (end - begin) / width;
    auto* const pack_data = reinterpret_cast<Pack<T, width>*>(data + begin);
    for (std::int64_t i = threadIdx.x; i < packs; i += kThreads) {
      Pack<T, width> pack = pack_data[i];
#pragma unroll
      for (int lane = 0; lane < width; ++lane) {
        unscale_one(pack.values[lane], inv_scale, write, found);
      }
      if (write) pack_data[i] = pack;
    }
    scalar_begin = begin + packs * width;
  }
  for (std::int64_t i = scalar_begin + threadIdx.x; i < end; i += kThreads) {
    T value = data[i];
    unscale_one(value, inv_scale, write, found);
    if (write) data[i] = value;
  }

  // Summed in the block first: if everything is nan, one atomic per element would be very slow.
  if (!__syncthreads_or(static_cast<int>(found.inf | found.nan))) return;
  __shared__ Found in_block;
  if (threadIdx.x == 0) in_block = Found{};
  __syncthreads();
  if (found.inf != 0) atomicAdd(&in_block.inf, found.inf);
  if (found.nan != 0) atomicAdd(&in_block.nan, found.nan);
  __syncthreads();
  if (threadIdx.x != 0) return;
  *found_inf = 1.0F;  // every writer writes the same
  if (counts == nullptr) return;
  NonFiniteCount* const count = counts + table.row[low];
  using Counter = unsigned long long;
  atomicAdd(reinterpret_cast<Counter*>(&count->inf), Counter{in_block.inf});
  atomicAdd(reinterpret_cast<Counter*>(&count->nan), Counter{in_block.nan});
}

template <class T, int size>
void launch_typed(const Table<size>& table, Writing writing, const float* inv_scale,
                  float* found_inf, NonFiniteCount* counts, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(table.first_block[table.tensors]);
  unscale_kernel<T><<<blocks, kThreads, 0, stream>>>(table, writing, inv_scale, found_inf, counts);
  check(cudaGetLastError(), "unscale");
}

template <int size>
void launch(ScalarKind kind, const Table<size>& table, Writing writing, const float* inv_scale,
            float* found_inf, NonFiniteCount* counts, cudaStream_t stream) {
  switch (kind) {
    case ScalarKind::float16:
      return launch_typed<__half>(table, writing, inv_scale, found_inf, counts, stream);
    case ScalarKind::bfloat16:
      return launch_typed<__nv_bfloat16>(table, writing, inv_scale, found_inf, counts, stream);
    case ScalarKind::float32:
      return launch_typed<float>(table, writing, inv_scale, found_inf, counts, stream);
    case ScalarKind::float64:
      return launch_typed<double>(table, writing, inv_scale, found_inf, counts, stream);
  }
}

template <int size>
void unscale_in_tables(std::span<const GradientSpan> gradients, ScalarKind kind, Writing writing,
                       const float* inv_scale, float* found_inf, NonFiniteCount* counts,
                       cudaStream_t stream) {
  Table<size> table;
  table.tensors = 0;
  table.first_block[0] = 0;
  const auto flush = [&] {
    if (table.tensors == 0) return;
    launch(kind, table, writing, inv_scale, found_inf, counts, stream);
    table.tensors = 0;
  };
  for (const GradientSpan& gradient : gradients) {
    if (gradient.numel == 0) continue;
    const int i = table.tensors++;
    table.data[i] = gradient.data;
    table.numel[i] = gradient.numel;
    table.row[i] = gradient.row;
    const std::int64_t blocks = (gradient.numel + kChunk - 1) / kChunk;
    table.first_block[i + 1] = table.first_block[i] + static_cast<std::int32_t>(blocks);
    // 2^29 blocks cover 2^44 elements, more than any device holds: the sum cannot overflow.
    if (table.tensors == size || table.first_block[i + 1] > (1 << 29)) flush();
  }
  flush();
}

}  // namespace

void unscale(std::span<const GradientSpan> gradients, ScalarKind kind, Writing writing,
             const float* inv_scale, float* found_inf, NonFiniteCount* counts, void* stream) {
  const auto run = gradients.size() <= kSmallTable ? unscale_in_tables<kSmallTable>
                                                   : unscale_in_tables<kLargeTable>;
  run(gradients, kind, writing, inv_scale, found_inf, counts, static_cast<cudaStream_t>(stream));
}

}  // namespace accelerant::kernels::cuda
