// The kernels of mixed precision, behind raw pointers: no torch header is needed to compile or to
// call the CUDA ones. So nvcc takes seconds, and compiles them where torch has no CUDA, too. The
// list of tensors travels in the arguments of a launch, which saves a copy to the device.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/scale_state.h"

namespace accelerant::kernels {

enum class ScalarKind : std::uint8_t { float16, bfloat16, float32, float64 };

// Whether gradients are replaced by their unscaled values, or only checked for what these would be.
enum class Writing { unscaled_values, nothing };

// Elements of one tensor that are not finite.
struct NonFiniteCount {
  std::uint64_t inf;
  std::uint64_t nan;
};

// One gradient as a run of elements without gaps.
struct GradientSpan {
  void* data;
  std::int64_t numel;
  std::int32_t row;  // where its elements are counted
};

namespace cuda {

// Multiplies every element by *inv_scale, sets *found_inf to 1 where a result is not finite and
// adds those to counts[row] (unless counts is null). Gradients are not written when *inv_scale is 1
// or when they are only to be checked. All spans have elements of one kind and lie on the current
// device; `stream` is a cudaStream_t of it.
void unscale(std::span<const GradientSpan> gradients, ScalarKind kind, Writing writing,
             const float* inv_scale, float* found_inf, NonFiniteCount* counts, void* stream);

// Applies the rule to the state and copies the result into the mirror.
void update_scale(ScaleState* state, const float* found_inf, const UpdateRule& rule,
                  ScaleMirror* mirror, void* stream);

// Copies a flag into host memory that the device can write. What comes behind it on the stream need
// not wait for a copy engine, which takes some 15 us for four bytes.
void copy_flag(const float* flag, float* host, void* stream);

// Copies the state into the mirror.
void publish(const ScaleState* state, ScaleMirror* mirror, void* stream);

}  // namespace cuda
}  // namespace accelerant::kernels
