// Reads and writes runs of elements of several types as float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/amp_kernels.h"

namespace accelerant::kernels::cuda {

template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T values[width];
};

__device__ __forceinline__ bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ float load_one(const void* data, std::int64_t index, ScalarKind kind) {
  if (kind == ScalarKind::float32) return static_cast<const float*>(data)[index];
  if (kind == ScalarKind::float16) return widen(static_cast<const __half*>(data)[index]);
  return widen(static_cast<const __nv_bfloat16*>(data)[index]);
}

__device__ __forceinline__ void store_one(void* data, std::int64_t index, ScalarKind kind,
                                          float value) {
  if (kind == ScalarKind::float32) {
    static_cast<float*>(data)[index] = value;
  } else if (kind == ScalarKind::float16) {
    static_cast<__half*>(data)[index] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
  }
}

// Eight elements, starting at a multiple of eight, in accesses of 16 bytes.
__device__ __forceinline__ void load_eight(const void* data, std::int64_t index, ScalarKind kind,
                                           float (&values)[8]) {
  if (kind == ScalarKind::float32) {
    const auto* const packs =
        reinterpret_cast<const Pack<float, 4>*>(static_cast<const float*>(data) + index);
    const Pack<float, 4> low = packs[0];
    const Pack<float, 4> high = packs[1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = low.values[i];
      values[4 + i] = high.values[i];
    }
  } else if (kind == ScalarKind::float16) {
    const auto pack =
        *reinterpret_cast<const Pack<__half, 8>*>(static_cast<const __half*>(data) + index);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = widen(pack.values[i]);
  } else {
    const auto pack = *reinterpret_cast<const Pack<__nv_bfloat16, 8>*>(
        static_cast<const __nv_bfloat16*>(data) + index);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = widen(pack.values[i]);
  }
}

__device__ __forceinline__ void store_eight(void* data, std::int64_t index, ScalarKind kind,
                                            const float (&values)[8]) {
  if (kind == ScalarKind::float32) {
    auto* const packs = reinterpret_cast<Pack<float, 4>*>(static_cast<float*>(data) + index);
    Pack<float, 4> low;
    Pack<float, 4> high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low.values[i] = values[i];
      high.values[i] = values[4 + i];
    }
    packs[0] = low;
    packs[1] = high;
  } else if (kind == ScalarKind::float16) {
    Pack<__half, 8> pack;
#pragma unroll
    for (int i = 0; i < 8; ++i) pack.values[i] = __float2half_rn(values[i]);
    *reinterpret_cast<Pack<__half, 8>*>(static_cast<__half*>(data) + index) = pack;
  } else {
    Pack<__nv_bfloat16, 8> pack;
#pragma unroll
    for (int i = 0; i < 8; ++i) pack.values[i] = __float2bfloat16_rn(values[i]);
    *reinterpret_cast<Pack<__nv_bfloat16, 8>*>(static_cast<__nv_bfloat16*>(data) + index) = pack;
  }
}

// Whether this is the last block of the launch to get here. It can then read everything that the
// first threads of other blocks wrote before. Resets the counter to zero for the next launch. All
// threads of the block must call it.
__device__ __forceinline__ bool is_last_block(unsigned* counter) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace accelerant::kernels::cuda
