// The parts of gather and pad_across_processes that other collectives use. Processes must have
// agreed on the shapes already.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// The tensors of all processes, joined along the first dimension; shapes are equal on all.
std::vector<at::Tensor> gather_tensors(const World& world, const char* name,
                                       const std::vector<at::Tensor>& tensors);

// Pads `dim` to `size`. Returns the tensor unchanged if it already has that size.
at::Tensor padded_along(const at::Tensor& tensor, int64_t dim, int64_t size,
                        const c10::Scalar& pad_index = 0, bool pad_first = false);

}  // namespace accelerant::dist
