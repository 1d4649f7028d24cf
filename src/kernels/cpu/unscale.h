// Unscaling on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/amp_kernels.h"

namespace accelerant::kernels::cpu {

// Multiplies a gradient of any strides by `inv_scale` in place, in parallel on torch's own threads,
// and returns how many elements are not finite afterwards. Writes nothing when `inv_scale` is 1.
NonFiniteCount unscale(const at::Tensor& gradient, float inv_scale);

}  // namespace accelerant::kernels::cpu
