// Tensors by name, for example the parameters and buffers of a model.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>

namespace accelerant {

// In the order of registration.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

}  // namespace accelerant
