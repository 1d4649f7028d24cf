// The two passes of a fused optimizer step, behind raw pointers: no torch header is needed to
// compile or to call the CUDA ones.
//
// All tensors of the step lie in tables in the memory of the device, each cut into chunks; a block
// of threads works on one chunk, or each of its warps on a small one. So a pass is one launch
// whatever the number of tensors.
//
// The first pass reads all gradients once: the sum of their squares, and whether all are finite.
// The second multiplies them by one coefficient, which stands for the loss scale, a factor of the
// caller and clipping, and updates parameters and states, or changes nothing after an overflow.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/amp_kernels.h"
#include "kernels/fused_rules.h"

namespace accelerant::kernels {

inline constexpr std::int64_t kStepChunk = 16384;      // elements
inline constexpr std::int64_t kSmallStepChunk = 1024;  // that one warp works on at most

// One parameter as runs of elements without gaps, all in the same order.
struct StepTensor {
  void* parameter;  // what is updated: the parameter, or its master copy
  void* weight;     // the parameter that has a master copy: written only. Else null
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

// What one block of CUDA threads works on: several blocks only if all of them are small.
struct alignas(16) StepBundle {  // one access
  std::int32_t first_block;
  std::int32_t blocks;
  StepBlock first;  // its content, which a kernel need not wait for then
};
inline constexpr std::int32_t kMostInBundle = 16;

// What the first pass saw in one block.
struct StepPartial {
  double sum_of_squares;
  std::uint32_t inf;
  std::uint32_t nan;
};

// The result of the first pass: of the gradients times their factors.
struct StepOutcome {
  float found_inf;  // 0 or 1
  float norm;
  double exact_norm;
};

struct StepTables {
  const StepTensor* tensors;
  const void* const* gradients;  // one for each tensor
  const StepBlock* blocks;
  const StepBundle* bundles;
  const Hyper* groups;
  std::int64_t* steps;    // updates made so far, by slot
  StepPartial* partials;  // one for each block
};

// By what gradients are multiplied: the product of these. Null stands for 1.
struct StepFactors {
  const float* inv_scale;
  const float* factor;
  double constant;
};

// Where the norm is limited: `outcome` is that of the first pass. Null: it is not.
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

// With the coefficient of clipping, as Python makes it: a norm that is nan makes it nan.
ACCELERANT_KERNEL_FUNCTION double coefficient_of(const StepFactors& factors,
                                                 const StepLimit& limit) {
  const double product = product_of(factors);
  if (limit.outcome == nullptr) return product;
  const double ratio = limit.max_norm / (limit.outcome->exact_norm + 1e-6);
  return ratio > 1.0 ? product : product * ratio;
}

// Tensors that follow each other in the tables and are served by one kernel.
struct StepSegment {
  Rule rule;
  bool all_float32;  // parameter, gradient and states, and no master copy
  std::int32_t first_tensor;
  std::int32_t tensors;
  std::int32_t first_bundle;
  std::int32_t bundles;
};

namespace cuda {

// Bytes of scratch memory on the device, set to zero once: counters that each launch leaves at
// zero.
inline constexpr std::int64_t kStepScratchBytes = 256;
inline constexpr int kMostSegments = 60;

// The first pass over all blocks and bundles.
void check_gradients(const StepTables& tables, std::int32_t blocks, std::int32_t bundles,
                     const StepFactors& factors, StepOutcome* outcome, void* scratch, void* stream);

// The second pass: changes nothing if *found_inf is not 0; null stands for 0.
void apply_step(const StepTables& tables, std::span<const StepSegment> segments,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf,
                void* scratch, void* stream);

}  // namespace cuda

namespace cpu {

// As above. `costs` has one number more than there are blocks: the work before each of them.
void check_gradients(const StepTables& tables, std::span<const std::int64_t> costs,
                     const StepFactors& factors, StepOutcome* outcome);
void apply_step(const StepTables& tables, std::span<const std::int64_t> costs, std::int32_t tensors,
                const StepFactors& factors, const StepLimit& limit, const float* found_inf);

// The work of a block with so many elements.
inline std::int64_t cost_of_block(std::int64_t elements) { return elements + 64; }

}  // namespace cpu
}  // namespace accelerant::kernels
