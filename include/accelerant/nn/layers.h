// Drop-in replacements for parts of torch::nn that are slower in C++ than they could be: Linear and
// cross_entropy.
//
//   accelerant::nn::Linear head(768, 50257);
//   auto logits = head->forward(x);  // x of any shape (..., 768)
//
//   namespace F = accelerant::nn::functional;
//   auto loss = F::cross_entropy(logits, targets);
//   using Options = torch::nn::functional::CrossEntropyFuncOptions;
//   auto loss = F::cross_entropy(logits, targets, Options().ignore_index(0));
//
// This header needs torch::nn::Module and so takes almost as long to compile as torch/torch.h:
// accelerant.h does not include it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/options/loss.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>

namespace accelerant::nn {

// torch::nn::Linear, as fast in C++ as in Python.
//
// torch::nn::Linear multiplies, and then adds the bias in a second pass over the output unless its
// input has two dimensions. This one calls at::linear, which does both at once, like Python's
// nn.Linear. Everything else comes from its base class torch::nn::Linear: options, names and
// initialisation of the parameters, weight files, and code that looks for
// `module->as<torch::nn::Linear>()`. Only `forward` is new. It is not virtual, so it takes effect
// where the type is statically known: a member, a variable, an element of a torch::nn::Sequential.
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

namespace functional {

// The cross entropy of `input` and `target`, with the options and meaning of
// torch::nn::functional::cross_entropy, but it reads the logits once in each direction. The loss is
// always computed and returned in at least float32: outside of autocast, torch rounds the loss of
// 16-bit logits to 16 bits.
//
// Under autocast torch casts logits to float32, writes the logarithm of their softmax and, in
// backward, a gradient of it that is zero almost everywhere. With a large vocabulary that takes a
// considerable part of a training step, and several times the memory of the logits. Accelerant's
// kernels keep two numbers per row, and write the gradient in the type of the logits.
//
// They handle logits of shape (rows, classes) on a GPU, in float32, float16 or bfloat16, with
// targets that are class indices (int64) and without class weights. Everything else uses torch's
// own operations. The kernels read the logits again in backward, so the logits must not be changed
// in place before that; doing so is an error.
at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target,
                         const torch::nn::functional::CrossEntropyFuncOptions& options = {});

}  // namespace functional

}  // namespace accelerant::nn
