// The two passes of a fused optimizer step, behind raw pointers: the CUDA ones compile and can be
// called without torch headers.
//
// Tables in device memory list all tensors of the step, divided into chunks. A thread block works
// on one chunk, or each of its warps on a small one. A pass is therefore one launch, whatever the
// number of tensors.
//
// The first pass reads all gradients once and computes the sum of their squares, and whether all
// are finite. The second multiplies them by one coefficient, which combines the loss scale, a
// factor of the caller and clipping, and updates parameters and states. After an overflow it
// changes nothing.
//
// Once the training is stopped (ScaleState::stopped), the first pass reports an overflow whatever
// it finds, and keeps the counts of inf and nan that it found before, for the report.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/amp_kernels.h"
#include "kernels/fused_rules.h"

namespace accelerant::kernels {

inline constexpr std::int64_t kStepChunk = 16384;      // elements
inline constexpr std::int64_t kSmallStepChunk = 1024;  // the most elements for one warp

// One parameter as contiguous runs of elements, all in the same order.
struct StepTensor {
  void* parameter;  // what is updated: the parameter, or its master copy
  void* weight;     // the parameter of a master copy, only written; otherwise null
  void* states[kMostStates];
  std::int64_t numel;
  std::int32_t group;
  std::int32_t slot;  // where its updates are counted
  Rule rule;
  ScalarKind parameter_kind;
  ScalarKind weight_kind;
  ScalarKind gradient_kind;
  ScalarKind state_kind;
};

// Elements [chunk * kStepChunk, (chunk + 1) * kStepChunk) of a tensor.
struct StepBlock {
  std::int32_t tensor;
  std::int32_t chunk;
};

struct BlockRange {
  std::int64_t begin;
  std::int64_t end;
};

// What one CUDA thread block works on: several blocks only if all of them are small.
struct alignas(16) StepBundle {  // one access
  std::int32_t first_block;
  std::int32_t blocks;
  StepBlock first;  // a copy, so that a kernel need not wait to load it
};
inline constexpr std::int32_t kMostInBundle = 16;

// What the first pass found in one block.
struct StepPartial {
  double sum_of_squares;
  std::uint32_t inf;
  std::uint32_t nan;
};

// The result of the first pass, for the gradients times their factors.
struct StepOutcome {
  float found_inf;  // 0 or 1
  float norm;
  double exact_norm;
};

struct StepTables {
  const StepTensor* tensors;
  const void* const* gradients;  // one per tensor
  const StepBlock* blocks;
  const StepBundle* bundles;
  const Hyper* groups;
  std::int64_t* steps;    // updates so far, by slot
  StepPartial* partials;  // one per block
};

// Gradients are multiplied by the product of these. A null pointer means 1.
struct StepFactors {
  const float* inv_scale;
  const float* factor;
  double constant;
};

// Limits the norm, using the outcome of the first pass. A null pointer means no limit.
struct StepLimit {
  const StepOutcome* outcome;
  double max_norm;
};

ACCELERANT_KERNEL_FUNCTION double product_of(const StepFactors& factors) {
  double product = factors.constant;
  if (factors.inv_scale != nullptr) product *= static_cast<double>(*factors.inv_scale);
  if (factors.factor != nullptr) product *= static_cast<double>(*factors.factor);
  return product;
}

// Includes the clipping coefficient, computed as in Python: a nan norm makes it nan.
ACCELERANT_KERNEL_FUNCTION double coefficient_of(const StepFactors& factors,
                                                 const StepLimit& limit) {
  const double product = product_of(factors);
  if (limit.outcome == nullptr) return product;
  const double ratio = limit.max_norm / (limit.outcome->exact_norm + 1e-6);
  return ratio > 1.0 ? product : product * ratio;
}

// Consecutive tensors in the tables that one kernel handles.
struct StepSegment {
  Rule rule;
  bool all_float32;  // parameter, gradient and states, and no master copy
  std::int32_t first_tensor;
  std::int32_t tensors;
  std::int32_t first_bundle;
  std::int32_t bundles;
};

namespace cuda {

// Bytes of scratch memory on the device, zeroed once: counters that each launch resets to zero.
inline constexpr std::int64_t kStepScratchBytes = 256;
inline constexpr int kMostSegments = 60;

// The first pass over all blocks and bundles. `stopped` may be null, which means 0.
void check_gradients(const StepTables& tables, std::int32_t blocks, std::int32_t bundles,
                     const StepFactors& factors, const float* stopped, StepOutcome* outcome,
                     void* scratch, void* stream);

// The second pass: changes nothing if *found_inf is not 0. A null pointer means 0.
void apply_step(const StepTables& tables, std::span<const StepSegment> segments,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf,
                void* scratch, void* stream);

}  // namespace cuda

namespace cpu {

// As above. `costs` has one more entry than there are blocks: the work before each of them.
void check_gradients(const StepTables& tables, std::span<const std::int64_t> costs,
                     const StepFactors& factors, const float* stopped, StepOutcome* outcome);
void apply_step(const StepTables& tables, std::span<const std::int64_t> costs, std::int32_t tensors,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf);

// The second pass in parts, for results that are sent on while the rest is computed: the blocks of
// a range, without a look at any flag, and the counting of the tensors [first, end).
void update_blocks(const StepTables& tables, std::span<const std::int64_t> costs,
                   const BlockRange& blocks, const StepFactors& factors, const StepLimit& limit);
void count_updates(const StepTables& tables, std::int32_t first, std::int32_t end);

// The work of a block with this many elements.
inline std::int64_t cost_of_block(std::int64_t elements) { return elements + 64; }

}  // namespace cpu
}  // namespace accelerant::kernels
