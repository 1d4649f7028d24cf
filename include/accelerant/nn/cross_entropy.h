// A drop-in replacement for torch::nn::functional::cross_entropy that reads the logits once in each
// direction.
//
//   namespace F = accelerant::nn::functional;
//   auto loss = F::cross_entropy(logits, targets);
//   using Options = torch::nn::functional::CrossEntropyFuncOptions;
//   auto loss = F::cross_entropy(logits, targets, Options().ignore_index(0));
//
// Under autocast torch casts logits to float32, writes the logarithm of their softmax and, in
// backward, a gradient of it that is zero almost everywhere. With a large vocabulary that takes a
// considerable part of a training step, and several times the memory of the logits. Accelerant's
// kernels keep two numbers per row, and write the gradient in the type of the logits.
//
// This header needs the options of torch::nn and so takes almost as long to compile as
// torch/torch.h: accelerant.h does not include it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/options/loss.h>

namespace accelerant::nn::functional {

// The cross entropy of `input` and `target`, with the options and meaning of torch. The loss is
// always computed and returned in at least float32: outside of autocast, torch rounds the loss of
// 16-bit logits to 16 bits.
//
// Accelerant's kernels handle logits of shape (rows, classes) on a GPU, in float32, float16 or
// bfloat16, with targets that are class indices (int64) and without class weights. Everything else
// uses torch's own operations. The kernels read the logits again in backward, so the logits must
// not be changed in place before that; doing so is an error.
at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target,
                         const torch::nn::functional::CrossEntropyFuncOptions& options = {});

}  // namespace accelerant::nn::functional
