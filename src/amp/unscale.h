// Unscaling with a count of what was not finite, per gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant::detail {

// As non_finite_check_and_unscale_ (arguments unchecked); adds to counts[i] how many elements of
// gradient i are infinite and how many nan. `counts` is memory of the gradients' device, or null.
void unscale_and_count_(at::TensorList gradients, const at::Tensor& found_inf,
                        const at::Tensor& inv_scale, kernels::NonFiniteCount* counts);

// The same by ATen operators alone, for devices without kernels of ours.
void unscale_and_count_by_aten_(at::TensorList gradients, const at::Tensor& found_inf,
                                const at::Tensor& inv_scale, kernels::NonFiniteCount* counts);

}  // namespace accelerant::detail
