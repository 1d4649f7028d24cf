// The operation underneath GradScaler: check gradients for overflow and unscale them in one pass.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace accelerant
