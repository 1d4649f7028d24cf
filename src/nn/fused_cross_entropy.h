// Cross entropy by kernels of ours, as an operation of autograd.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accelerant::nn {

struct CrossEntropyRules {
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  int64_t reduction = at::Reduction::Mean;
};

// Whether there are kernels for it. What torch would refuse is left to torch.
bool can_fuse_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                            const CrossEntropyRules& rules);

// The loss in float32. Gradients of gradients go through torch's own operations.
at::Tensor fused_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                               const CrossEntropyRules& rules);

// The gradient of the logits by torch's operations, so that it has gradients itself. `of_rows` is
// that of the loss of each row: one number, or one for each.
at::Tensor cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyRules& rules, const at::Tensor& of_rows);

}  // namespace accelerant::nn
