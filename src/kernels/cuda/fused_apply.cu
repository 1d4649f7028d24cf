// The second pass of the fused step: unscales, clips, decays and updates.
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/fused_step.h"

namespace accelerant::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Arguments {
  StepTables tables;
  StepSegment segment;
  StepFactors factors;
  StepLimit limit;
  const float* found_inf;
  unsigned* counter;
};

// The runs of one block, starting at its first element.
struct Runs {
  const void* gradient;
  void* parameter;
  void* weight;
  void* states[kMostStates];
};

template <class T>
__device__ __forceinline__ T* advanced(T* data, std::int64_t elements, ScalarKind kind) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + elements * (kind == ScalarKind::float32 ? 4 : 2);
}

template <Rule rule>
__device__ __forceinline__ bool all_aligned(const Runs& runs) {
  bool aligned = is_aligned(runs.gradient) && is_aligned(runs.parameter) && is_aligned(runs.weight);
#pragma unroll
  for (int i = 0; i < states_of(rule); ++i) aligned &= is_aligned(runs.states[i]);
  return aligned;
}

template <Rule rule, int threads>
__device__ __forceinline__ void update_float32(const Runs& runs, int size,
                                               const Scalars<float>& scalars) {
  const int thread = static_cast<int>(threadIdx.x) % threads;
  constexpr int states = states_of(rule);
  using Four = Pack<float, 4>;
  const auto* const gradient = static_cast<const float*>(runs.gradient);
  auto* const parameter = static_cast<float*>(runs.parameter);
  int done = 0;
  if (threads == kThreads && all_aligned<rule>(runs)) {  // warps have little to do
    const int packs = size / 4;
    for (int i = thread; i < packs; i += threads) {
      const Four g = reinterpret_cast<const Four*>(gradient)[i];
      Four p = reinterpret_cast<const Four*>(parameter)[i];
      Four s[kMostStates] = {};
#pragma unroll
      for (int k = 0; k < states; ++k) s[k] = static_cast<const Four*>(runs.states[k])[i];
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        update_element<rule>(scalars, g.values[lane], p.values[lane], s[0].values[lane],
                             s[1].values[lane], s[2].values[lane]);
      }
      reinterpret_cast<Four*>(parameter)[i] = p;
#pragma unroll
      for (int k = 0; k < states; ++k) static_cast<Four*>(runs.states[k])[i] = s[k];
    }
    done = packs * 4;
  }
  for (int i = done + thread; i < size; i += threads) {
    float p = parameter[i];
    float s[kMostStates] = {};
#pragma unroll
    for (int k = 0; k < states; ++k) s[k] = static_cast<const float*>(runs.states[k])[i];
    update_element<rule>(scalars, gradient[i], p, s[0], s[1], s[2]);
    parameter[i] = p;
#pragma unroll
    for (int k = 0; k < states; ++k) static_cast<float*>(runs.states[k])[i] = s[k];
  }
}

template <Rule rule, int threads>
__device__ __forceinline__ void update_mixed(const Runs& runs, int size, const StepTensor& tensor,
                                             const Scalars<float>& scalars) {
  const int thread = static_cast<int>(threadIdx.x) % threads;
  constexpr int states = states_of(rule);
  const ScalarKind gradient_kind = tensor.gradient_kind;
  const ScalarKind parameter_kind = tensor.parameter_kind;
  const ScalarKind weight_kind = tensor.weight_kind;
  const ScalarKind state_kind = tensor.state_kind;
  int done = 0;
  if (threads == kThreads && all_aligned<rule>(runs)) {  // warps have little to do
    done = size / 8 * 8;
    for (int i = 8 * thread; i < done; i += 8 * threads) {
      float g[8];
      float p[8];
      float s[kMostStates][8];
      load_eight(runs.gradient, i, gradient_kind, g);
      load_eight(runs.parameter, i, parameter_kind, p);
#pragma unroll
      for (int k = 0; k < states; ++k) load_eight(runs.states[k], i, state_kind, s[k]);
#pragma unroll
      for (int lane = 0; lane < 8; ++lane) {
        update_element<rule>(scalars, g[lane], p[lane], s[0][lane], s[1][lane], s[2][lane]);
      }
      store_eight(runs.parameter, i, parameter_kind, p);
      if (runs.weight != nullptr) store_eight(runs.weight, i, weight_kind, p);
#pragma unroll
      for (int k = 0; k < states; ++k) store_eight(runs.states[k], i, state_kind, s[k]);
    }
  }
  for (int i = done + thread; i < size; i += threads) {
    float p = load_one(runs.parameter, i, parameter_kind);
    float s[kMostStates] = {};
#pragma unroll
    for (int k = 0; k < states; ++k) s[k] = load_one(runs.states[k], i, state_kind);
    update_element<rule>(scalars, load_one(runs.gradient, i, gradient_kind), p, s[0], s[1], s[2]);
    store_one(runs.parameter, i, parameter_kind, p);
    if (runs.weight != nullptr) store_one(runs.weight, i, weight_kind, p);
#pragma unroll
    for (int k = 0; k < states; ++k) store_one(runs.states[k], i, state_kind, s[k]);
  }
}

// Runs on the whole thread block or on one warp. `shared` belongs to these threads alone.
template <Rule rule, bool all_float32, int threads>
__device__ __forceinline__ void update_block(const Arguments& arguments, StepBlock block,
                                             Scalars<float>& shared) {
  const StepTables& tables = arguments.tables;
  const StepTensor& tensor = tables.tensors[block.tensor];
  if (threadIdx.x % threads == 0) {
    shared = scalars_of<float>(rule, tables.groups[tensor.group], tables.steps[tensor.slot],
                               coefficient_of(arguments.factors, arguments.limit));
  }
  const std::int64_t begin = kStepChunk * block.chunk;
  const int size = static_cast<int>(min(kStepChunk, tensor.numel - begin));
  Runs runs{};
  runs.gradient = advanced(tables.gradients[block.tensor], begin, tensor.gradient_kind);
  runs.parameter = advanced(tensor.parameter, begin, tensor.parameter_kind);
#pragma unroll
  for (int k = 0; k < states_of(rule); ++k) {
    runs.states[k] = advanced(tensor.states[k], begin, tensor.state_kind);
  }
  if (tensor.weight != nullptr) runs.weight = advanced(tensor.weight, begin, tensor.weight_kind);
  if constexpr (threads == kThreads) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  const Scalars<float> scalars = shared;
  if constexpr (all_float32) {
    update_float32<rule, threads>(runs, size, scalars);
  } else {
    update_mixed<rule, threads>(runs, size, tensor, scalars);
  }
}

template <Rule rule, bool all_float32>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const __grid_constant__ Arguments arguments) {
  if (arguments.found_inf != nullptr && *arguments.found_inf != 0.0F) return;
  const StepTables& tables = arguments.tables;
  const StepSegment& segment = arguments.segment;
  if (segment.bundles > 0) {
    __shared__ Scalars<float> shared[kWarps];
    const int reversed = segment.bundles - 1 - static_cast<int>(blockIdx.x);
    const StepBundle bundle = tables.bundles[segment.first_bundle + reversed];
    if (bundle.blocks == 1) {
      update_block<rule, all_float32, kThreads>(arguments, bundle.first, shared[0]);
    } else {
      const int warp = static_cast<int>(threadIdx.x) / 32;
      for (int i = warp; i < bundle.blocks; i += kWarps) {
        update_block<rule, all_float32, 32>(arguments, tables.blocks[bundle.first_block + i],
                                            shared[warp]);
        __syncwarp();
      }
    }
  }

  // All blocks have read the counts by now.
  if (!is_last_block(arguments.counter)) return;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < segment.tensors; i += kThreads) {
    ++tables.steps[tables.tensors[segment.first_tensor + i].slot];
  }
}

using Kernel = void (*)(Arguments);

struct Kernels {
  Kernel all_float32[kRules];
  Kernel mixed[kRules];
};

template <int... rules>
Kernels make_kernels(std::integer_sequence<int, rules...>) {
  return {.all_float32 = {apply_kernel<static_cast<Rule>(rules), true>...},
          .mixed = {apply_kernel<static_cast<Rule>(rules), false>...}};
}

}  // namespace

void apply_step(const StepTables& tables, std::span<const StepSegment> segments,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf,
                void* scratch, void* stream) {
  static const Kernels kernels = make_kernels(std::make_integer_sequence<int, kRules>());
  static_assert((1 + kMostSegments) * sizeof(unsigned) <= kStepScratchBytes);
  // From the last block to the first: the first pass went the other way, so the cache may still
  // hold what it read last.
  for (std::size_t i = segments.size(); i-- > 0;) {
    const StepSegment& segment = segments[i];
    const Kernel kernel =
        (segment.all_float32 ? kernels.all_float32 : kernels.mixed)[static_cast<int>(segment.rule)];
    const unsigned grid = segment.bundles > 0 ? static_cast<unsigned>(segment.bundles) : 1U;
    const Arguments arguments{.tables = tables,
                              .segment = segment,
                              .factors = factors,
                              .limit = limit,
                              .found_inf = found_inf,
                              .counter = static_cast<unsigned*>(scratch) + 1 + i};
    kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
    check(cudaGetLastError(), "apply_step");
  }
}

}  // namespace accelerant::kernels::cuda
