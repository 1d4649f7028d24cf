// Unscaling with a count of what was not finite, per gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant::detail {

// Whether kernels of ours run on this device; others are served by ATen operators.
bool has_kernels(c10::Device device);

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

}  // namespace accelerant::detail
