// The tensors that go into a captured step and come out of it. Any of them may be undefined.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace accelerant::detail {

using Tensors = std::vector<at::Tensor>;

// Those that are there stay as they are. Does not wait for the device.
Tensors on_device(Tensors inputs, c10::Device device);

// Memory like that of the inputs, which a graph can read.
Tensors buffers_for(const Tensors& inputs);

// Copies without waiting for the device.
void fill(const Tensors& buffers, const Tensors& inputs);
Tensors copies_of(const Tensors& tensors);

bool is_elsewhere(const Tensors& tensors, c10::Device device);

}  // namespace accelerant::detail
