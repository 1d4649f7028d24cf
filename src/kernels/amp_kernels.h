// The kernels of mixed precision, behind raw pointers: the CUDA ones compile and can be called
// without torch headers. nvcc then takes seconds, and can compile them even if torch has no CUDA.
// The list of tensors travels in the launch arguments, which saves a copy to the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/scale_state.h"

namespace accelerant::kernels {

enum class ScalarKind : std::uint8_t { float16, bfloat16, float32, float64 };

// Whether gradients are replaced by their unscaled values, or only checked.
enum class Writing { unscaled_values, nothing };

// Non-finite elements of one tensor.
struct NonFiniteCount {
  std::uint64_t inf;
  std::uint64_t nan;
};

// One gradient as a contiguous run of elements.
struct GradientSpan {
  void* data;
  std::int64_t numel;
  std::int32_t row;  // where its non-finite elements are counted
};

namespace cuda {

// Multiplies every element by *inv_scale, sets *found_inf to 1 if a result is not finite, and adds
// the number of such results to counts[row] unless counts is null. Does not write gradients if
// *inv_scale is 1 or if they are only checked. All spans have elements of one kind and lie on the
// current device; `stream` is a cudaStream_t of it.
void unscale(std::span<const GradientSpan> gradients, ScalarKind kind, Writing writing,
             const float* inv_scale, float* found_inf, NonFiniteCount* counts, void* stream);

// Applies the rule to the state and copies the result to the mirror.
void update_scale(ScaleState* state, const float* found_inf, const UpdateRule& rule,
                  ScaleMirror* mirror, void* stream);

// Copies a flag to host memory that the device can write. Later work on the stream need not wait
// for a copy engine, which takes about 15 us for four bytes.
void copy_flag(const float* flag, float* host, void* stream);

// Adds 1 to the count if the flag is not 0. Both are on the device.
void count_flag(std::int64_t* count, const float* flag, void* stream);

// Copies `bytes` bytes of pinned host memory to the device: those of the table at the index
// `*which`, one int64 on the device, or of the first table if that is null. Like copy_flag(), it
// does without a copy engine. `bytes` is a multiple of 8 and at most kMostCopied; the memory on
// both sides is aligned to 8 bytes.
inline constexpr std::size_t kMostCopied = 8192;
void copy_table(void* to, const void* tables, std::size_t bytes, const std::int64_t* which,
                void* stream);

// Copies the state to the mirror.
void publish(const ScaleState* state, ScaleMirror* mirror, void* stream);

}  // namespace cuda
}  // namespace accelerant::kernels
