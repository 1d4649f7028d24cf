// The operation underneath GradScaler: check gradients for overflow and unscale them in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant {

// Multiplies every element of `gradients` by `inv_scale` in place and sets `found_inf` to 1 if a
// result is not finite; otherwise `found_inf` keeps its value. An `inv_scale` of exactly 1 only
// checks and writes nothing.
//
// gradients: strided floating-point tensors of one device, 16, 32 or 64 bits, mixed types and any
//   strides without overlap. An empty list is fine.
// found_inf, inv_scale: one-element float32 tensors on the same device.
//
// Does not wait for the device. As torch._amp_foreach_non_finite_check_and_unscale_, but bfloat16
// works on CUDA and values that overflow by the multiplication count as well.
void non_finite_check_and_unscale_(at::TensorList gradients, const at::Tensor& found_inf,
                                   const at::Tensor& inv_scale);

namespace detail {

// Whether kernels of ours run on this device; others are served by ATen operators.
bool has_kernels(c10::Device device);

// What kernels call float16, bfloat16, float32 and float64.
kernels::ScalarKind scalar_kind(at::ScalarType type);

// Where non-finite elements are counted: int64 [gradients, 2], infinite and nan, inside a block of
// float32 memory on the gradients' device. An undefined block: nowhere.
struct Counts {
  at::Tensor memory;
  int64_t offset = 0;  // in floats

  at::Tensor rows(int64_t count) const;
};

// As non_finite_check_and_unscale_ (arguments unchecked), and adds what is not finite to `counts`.
void unscale_and_count_(at::TensorList gradients, const at::Tensor& inv_scale,
                        kernels::Writing writing, const at::Tensor& found_inf,
                        const Counts& counts);

// The same by ATen operators alone.
void unscale_and_count_by_aten_(at::TensorList gradients, const at::Tensor& inv_scale,
                                kernels::Writing writing, const at::Tensor& found_inf,
                                const Counts& counts);

}  // namespace detail
}  // namespace accelerant
