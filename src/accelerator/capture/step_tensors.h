// The inputs and outputs of a captured step. Any of the tensors may be undefined.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace accelerant::detail {

using Tensors = std::vector<at::Tensor>;

// Moves the inputs to the device; those already there stay. Does not wait for the device.
Tensors on_device(Tensors inputs, c10::Device device);

// Buffers with the shape and layout of the inputs, for a graph to read.
Tensors buffers_for(const Tensors& inputs);

// Copies without waiting for the device.
void fill(const Tensors& buffers, const Tensors& inputs);
Tensors copies_of(const Tensors& tensors);

bool is_elsewhere(const Tensors& tensors, c10::Device device);

}  // namespace accelerant::detail
