// Unscaling on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant::kernels::cpu {

// Multiplies a gradient with any strides by `inv_scale`, in parallel on torch's own threads, and
// returns how many results are not finite. Writes nothing if `inv_scale` is 1 or if the gradient is
// only checked.
NonFiniteCount unscale(const at::Tensor& gradient, float inv_scale, Writing writing);

}  // namespace accelerant::kernels::cpu
