// The operation behind GradScaler: check gradients for overflow and unscale them in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant {

// Multiplies every element of `gradients` by `inv_scale` in place and sets `found_inf` to 1 if a
// result is not finite; otherwise `found_inf` keeps its value. If `inv_scale` is exactly 1, only
// checks and writes nothing.
//
// gradients: strided floating-point tensors on one device, 16, 32 or 64 bits; types may be mixed,
//   and any strides without overlap are allowed. An empty list is fine.
// found_inf, inv_scale: one-element float32 tensors on the same device.
//
// Does not wait for the device. Like torch._amp_foreach_non_finite_check_and_unscale_, but bfloat16
// works on CUDA, and values that overflow in the multiplication count too.
void non_finite_check_and_unscale_(at::TensorList gradients, const at::Tensor& found_inf,
                                   const at::Tensor& inv_scale);

namespace detail {

// Whether Accelerant has kernels for this device; ATen operators handle the others.
bool has_kernels(c10::Device device);

// The kernels' name for float16, bfloat16, float32 or float64.
kernels::ScalarKind scalar_kind(at::ScalarType type);

// Where non-finite elements are counted: int64 [gradients, 2], infinite and nan, inside a block of
// float32 memory on the gradients' device. If the block is undefined, they are not counted.
struct Counts {
  at::Tensor memory;
  int64_t offset = 0;  // in floats

  at::Tensor rows(int64_t count) const;
};

// Like non_finite_check_and_unscale_ (without checking arguments); also adds non-finite elements to
// `counts`.
void unscale_and_count_(at::TensorList gradients, const at::Tensor& inv_scale,
                        kernels::Writing writing, const at::Tensor& found_inf,
                        const Counts& counts);

// The same with ATen operators only.
void unscale_and_count_by_aten_(at::TensorList gradients, const at::Tensor& inv_scale,
                                kernels::Writing writing, const at::Tensor& found_inf,
                                const Counts& counts);

}  // namespace detail
}  // namespace accelerant
