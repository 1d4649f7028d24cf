// A drop-in replacement for torch::nn::Linear that is as fast in C++ as in Python.
//
//   accelerant::nn::Linear head(768, 3072);
//   auto y = head->forward(x);  // x of any shape (..., 768)
//
// torch::nn::Linear multiplies, and then adds the bias in a second pass over the output unless its
// input has two dimensions. This one calls at::linear, which does both at once, like Python's
// nn.Linear. Everything else comes from its base class torch::nn::Linear: options, names and
// initialisation of the parameters, weight files, and code that looks for
// `module->as<torch::nn::Linear>()`. Only `forward` is new. It is not virtual, so it takes effect
// where the type is statically known: a member, a variable, an element of a torch::nn::Sequential.
//
// This header needs torch::nn::Module and so takes almost as long to compile as torch/torch.h:
// accelerant.h does not include it.
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
