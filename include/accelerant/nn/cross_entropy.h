// A drop-in for torch::nn::functional::cross_entropy that reads the logits once in either
// direction.
//
//   namespace F = accelerant::nn::functional;
//   auto loss = F::cross_entropy(logits, targets);
//   using Options = torch::nn::functional::CrossEntropyFuncOptions;
//   auto loss = F::cross_entropy(logits, targets, Options().ignore_index(0));
//
// Under autocast torch casts logits to float32, writes the logarithm of their softmax, and in
// backward a gradient of it that is zero almost everywhere: with a large vocabulary that takes a
// good part of a training step, and several times the memory of the logits. Here kernels of ours
// keep two numbers for each row, and write the gradient in the type of the logits.
//
// This header needs the options of torch::nn, and so costs most of what torch/torch.h costs:
// accelerant.h does not include it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/options/loss.h>

namespace accelerant::nn::functional {

// The cross entropy of `input` and `target`, with the options and meaning of torch. The loss is
// always computed and returned in float32 at least: torch rounds that of 16-bit logits to 16 bits
// outside of autocast.
//
// Kernels of ours serve logits of shape (rows, classes) on a GPU, in float32, float16 or bfloat16,
// and targets that are indices of classes (int64), without weights of classes. All else goes
// through torch's own operations. The kernels read the logits again in backward, so that these must
// not be changed in place before it (which is an error).
at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target,
                         const torch::nn::functional::CrossEntropyFuncOptions& options = {});

}  // namespace accelerant::nn::functional
