#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cpu/fused_loops.h"
#include "kernels/fused_step.h"

namespace accelerant::kernels::cpu {
namespace {

// Elements converted at a time: all their float32 copies fit in the L1 cache.
constexpr std::int64_t kTile = 512;

// Amount of work, in elements, below which another thread does not pay off.
constexpr std::int64_t kGrain = 32768;

const FusedLoops& pick_loops() {
#if defined(ACCELERANT_X86_LOOPS)
  const std::string capability = at::get_cpu_capability();  // respects ATEN_CPU_CAPABILITY
  if (capability == "AVX512" && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return fused_loops_avx512;
  }
  if ((capability == "AVX2" || capability == "AVX512") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return fused_loops_avx2;
  }
#endif
  return fused_loops_default;
}

const FusedLoops& loops() {
  static const FusedLoops& picked = pick_loops();
  return picked;
}

std::int64_t size_of(ScalarKind kind) {
  if (kind == ScalarKind::float64) return 8;
  return kind == ScalarKind::float32 ? 4 : 2;
}

template <class T>
T* at_element(T* data, std::int64_t index, ScalarKind kind) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + index * size_of(kind);
}

// Elements as float32: the data itself, or a converted copy in `buffer`.
const float* widened(const void* data, ScalarKind kind, float* buffer, std::int64_t size) {
  if (kind == ScalarKind::float32) return static_cast<const float*>(data);
  const auto* const packed = static_cast<const std::uint16_t*>(data);
  (kind == ScalarKind::float16 ? loops().from_float16 : loops().from_bfloat16)(packed, buffer,
                                                                               size);
  return buffer;
}

void narrow(const float* values, ScalarKind kind, void* result, std::int64_t size) {
  auto* const packed = static_cast<std::uint16_t*>(result);
  (kind == ScalarKind::float16 ? loops().to_float16 : loops().to_bfloat16)(values, packed, size);
}

// The part of a tensor that a block covers.
struct Range {
  std::int64_t begin;
  std::int64_t size;
};

Range range_of(const StepTensor& tensor, const StepBlock& block) {
  const std::int64_t begin = block.chunk * kStepChunk;
  return {begin, std::min(kStepChunk, tensor.numel - begin)};
}

template <class T>
void count_non_finite(const T* values, std::int64_t size, T factor, StepPartial& partial) {
  for (std::int64_t i = 0; i < size; ++i) {
    const T value = values[i] * factor;
    if (std::isfinite(value)) continue;
    ++(std::isnan(value) ? partial.nan : partial.inf);
  }
}

StepPartial check_block(const void* gradient, ScalarKind kind, std::int64_t size, double product) {
  StepPartial partial{};
  if (kind == ScalarKind::float64) {
    const auto* const values = static_cast<const double*>(gradient);
    const SquareSum squares = loops().squares64(values, size, product);
    partial.sum_of_squares = squares.sum;
    if (!squares.finite) count_non_finite(values, size, product, partial);
    return partial;
  }
  const auto factor = static_cast<float>(product);
  float buffer[kTile];
  const std::int64_t step = kind == ScalarKind::float32 ? size : kTile;
  for (std::int64_t i = 0; i < size; i += step) {
    const std::int64_t count = std::min(step, size - i);
    const float* const values = widened(at_element(gradient, i, kind), kind, buffer, count);
    const SquareSum squares = loops().squares32(values, count, factor);
    partial.sum_of_squares += squares.sum;
    if (!squares.finite) count_non_finite(values, count, factor, partial);
  }
  return partial;
}

void update_tile(const StepTensor& tensor, const Scalars<float>& scalars, const void* gradient,
                 std::int64_t begin, std::int64_t size) {
  float buffers[2 + kMostStates][kTile];
  const auto writable = [&](void* data, ScalarKind kind, float* buffer) {
    return const_cast<float*>(widened(at_element(data, begin, kind), kind, buffer, size));
  };
  const float* const values = widened(at_element(gradient, begin, tensor.gradient_kind),
                                      tensor.gradient_kind, buffers[0], size);
  float* const parameter = writable(tensor.parameter, tensor.parameter_kind, buffers[1]);
  float* states[kMostStates] = {};
  const int count = states_of(tensor.rule);
  for (int i = 0; i < count; ++i) {
    states[i] = writable(tensor.states[i], tensor.state_kind, buffers[2 + i]);
  }
  loops().update32[static_cast<int>(tensor.rule)](scalars, values, parameter, states[0], states[1],
                                                  states[2], size);
  if (tensor.parameter_kind != ScalarKind::float32) {
    narrow(parameter, tensor.parameter_kind,
           at_element(tensor.parameter, begin, tensor.parameter_kind), size);
  }
  if (tensor.weight != nullptr) {
    narrow(parameter, tensor.weight_kind, at_element(tensor.weight, begin, tensor.weight_kind),
           size);
  }
  if (tensor.state_kind == ScalarKind::float32) return;
  for (int i = 0; i < count; ++i) {
    narrow(states[i], tensor.state_kind, at_element(tensor.states[i], begin, tensor.state_kind),
           size);
  }
}

bool is_all_float32(const StepTensor& tensor) {
  return tensor.parameter_kind == ScalarKind::float32 && tensor.weight == nullptr &&
         tensor.gradient_kind == ScalarKind::float32 && tensor.state_kind == ScalarKind::float32;
}

// The scalars of the last block: usually the next block needs the same, and powers are slow.
template <class T>
class ScalarMemo {
 public:
  const Scalars<T>& get(const StepTensor& tensor, const Hyper& hyper, std::int64_t steps,
                        double factor) {
    if (tensor.group != group_ || steps != steps_) {
      scalars_ = scalars_of<T>(tensor.rule, hyper, steps, factor);
      group_ = tensor.group;
      steps_ = steps;
    }
    return scalars_;
  }

 private:
  Scalars<T> scalars_;
  std::int32_t group_ = -1;
  std::int64_t steps_ = -1;
};

struct Memo {
  ScalarMemo<float> single;
  ScalarMemo<double> twice;
};

void update_block(const StepTensor& tensor, const Hyper& hyper, std::int64_t steps, double factor,
                  const void* gradient, const Range& range, Memo& memo) {
  if (tensor.parameter_kind == ScalarKind::float64) {
    const Scalars<double>& scalars = memo.twice.get(tensor, hyper, steps, factor);
    const auto part = [&](void* data) { return static_cast<double*>(data) + range.begin; };
    loops().update64[static_cast<int>(tensor.rule)](
        scalars, static_cast<const double*>(gradient) + range.begin, part(tensor.parameter),
        part(tensor.states[0]), part(tensor.states[1]), part(tensor.states[2]), range.size);
    return;
  }
  const Scalars<float>& scalars = memo.single.get(tensor, hyper, steps, factor);
  if (is_all_float32(tensor)) {
    const auto part = [&](void* data) { return static_cast<float*>(data) + range.begin; };
    loops().update32[static_cast<int>(tensor.rule)](
        scalars, static_cast<const float*>(gradient) + range.begin, part(tensor.parameter),
        part(tensor.states[0]), part(tensor.states[1]), part(tensor.states[2]), range.size);
    return;
  }
  for (std::int64_t i = 0; i < range.size; i += kTile) {
    update_tile(tensor, scalars, gradient, range.begin + i, std::min(kTile, range.size - i));
  }
}

// Calls f for every block of the range, on torch's own threads. Each thread gets a run of blocks
// with about the same amount of work, and a memo.
template <class F>
void for_each_block(std::span<const std::int64_t> costs, const BlockRange& blocks, const F& f) {
  if (blocks.begin >= blocks.end) return;
  const auto block_at = [&](std::int64_t cost) {
    return std::lower_bound(costs.begin(), costs.end(), cost) - costs.begin();
  };
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    const auto last = std::min<std::int64_t>(block_at(end), blocks.end);
    Memo memo;
    for (auto block = block_at(begin); block < last; ++block) f(block, memo);
  };
  const auto cost_of = [&](std::int64_t block) { return costs[static_cast<std::size_t>(block)]; };
  at::parallel_for(cost_of(blocks.begin), cost_of(blocks.end), kGrain, run);
}

BlockRange all_blocks(std::span<const std::int64_t> costs) {
  return {.begin = 0, .end = std::ssize(costs) - 1};
}

}  // namespace

void check_gradients(const StepTables& tables, std::span<const std::int64_t> costs,
                     const StepFactors& factors, const float* stopped, StepOutcome* outcome) {
  const double factor = product_of(factors);
  const bool is_stopped = stopped != nullptr && *stopped != 0.0F;
  for_each_block(costs, all_blocks(costs), [&](std::int64_t index, Memo&) {
    const StepBlock& block = tables.blocks[index];
    const StepTensor& tensor = tables.tensors[block.tensor];
    const Range range = range_of(tensor, block);
    const void* const gradient =
        at_element(tables.gradients[block.tensor], range.begin, tensor.gradient_kind);
    const StepPartial partial = check_block(gradient, tensor.gradient_kind, range.size, factor);
    if (is_stopped) {
      tables.partials[index].sum_of_squares = partial.sum_of_squares;
    } else {
      tables.partials[index] = partial;
    }
  });
  double sum = 0.0;
  bool finite = true;
  for (std::int64_t i = 0; i + 1 < std::ssize(costs); ++i) {
    sum += tables.partials[i].sum_of_squares;
    finite &= (tables.partials[i].inf | tables.partials[i].nan) == 0;
  }
  outcome->found_inf = finite && !is_stopped ? 0.0F : 1.0F;
  outcome->exact_norm = std::sqrt(sum);
  outcome->norm = static_cast<float>(outcome->exact_norm);
}

void apply_step(const StepTables& tables, std::span<const std::int64_t> costs, std::int32_t tensors,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf) {
  if (found_inf != nullptr && *found_inf != 0.0F) return;
  update_blocks(tables, costs, all_blocks(costs), factors, limit);
  count_updates(tables, 0, tensors);
}

void update_blocks(const StepTables& tables, std::span<const std::int64_t> costs,
                   const BlockRange& blocks, const StepFactors& factors, const StepLimit& limit) {
  const double factor = coefficient_of(factors, limit);
  for_each_block(costs, blocks, [&](std::int64_t index, Memo& memo) {
    const StepBlock& block = tables.blocks[index];
    const StepTensor& tensor = tables.tensors[block.tensor];
    update_block(tensor, tables.groups[tensor.group], tables.steps[tensor.slot], factor,
                 tables.gradients[block.tensor], range_of(tensor, block), memo);
  });
}

void count_updates(const StepTables& tables, std::int32_t first, std::int32_t end) {
  for (std::int32_t i = first; i < end; ++i) ++tables.steps[tables.tensors[i].slot];
}

}  // namespace accelerant::kernels::cpu
