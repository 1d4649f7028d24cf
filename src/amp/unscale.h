// Unscaling with a count of what was not finite, per gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerant::detail {

// As non_finite_check_and_unscale_ (arguments unchecked); adds to row i of `counts`, an int64 tensor
// [gradients, 2] on the same device, how many elements of gradient i are infinite and how many nan.
void unscale_and_count_(at::TensorList gradients, const at::Tensor& found_inf,
                        const at::Tensor& inv_scale, const at::Tensor& counts);

// The same by ATen operators alone, for devices without kernels of ours.
void unscale_and_count_by_aten_(at::TensorList gradients, const at::Tensor& found_inf,
                                const at::Tensor& inv_scale, const at::Tensor& counts);

}  // namespace accelerant::detail
