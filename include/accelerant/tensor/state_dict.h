// Tensors by name, for example the parameters and buffers of a model.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <string>

namespace accelerant {

// In the order of registration.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

namespace detail {

// A prepared model.
template <class M>
concept HasStateDict = requires(const M& model) {
  { model.state_dict() } -> std::same_as<StateDict>;
};

// torch::nn::Linear and everything made by TORCH_MODULE.
template <class M>
concept HoldsModule = requires(const M& holder) {
  typename M::ContainedType;
  holder.ptr();
};

}  // namespace detail

}  // namespace accelerant
