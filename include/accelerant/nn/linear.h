// A drop-in for torch::nn::Linear that is as fast in C++ as in Python.
//
//   accelerant::nn::Linear head(768, 3072);
//   auto y = head->forward(x);  // x of any shape (..., 768)
//
// torch::nn::Linear multiplies and then adds the bias in a second pass over the output unless its
// input has two dimensions; this one calls at::linear, which does both at once, as Python's
// nn.Linear does. Everything else is torch::nn::Linear, which it derives from: options, names and
// initialisation of the parameters, files of weights, and code that looks for
// `module->as<torch::nn::Linear>()`. Only `forward`, which is not virtual, is new, so it counts
// where the type is known to be this one: a member, a variable, an element of a
// torch::nn::Sequential.
//
// This header needs torch::nn::Module, and so costs most of what torch/torch.h costs: accelerant.h
// does not include it.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>

namespace accelerant::nn {

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  // input · weightᵀ + bias, for input of shape (..., in_features).
  at::Tensor forward(const at::Tensor& input);

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;
};
TORCH_MODULE(Linear);

}  // namespace accelerant::nn
