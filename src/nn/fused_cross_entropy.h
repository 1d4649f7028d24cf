// Cross entropy with Accelerant's kernels, as an autograd operation.
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

// Whether there are kernels for it. Inputs that torch would reject are left to torch.
bool can_fuse_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                            const CrossEntropyRules& rules);

// The loss in float32. Gradients of gradients go through torch's own operations.
at::Tensor fused_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                               const CrossEntropyRules& rules);

// The gradient of the logits computed with torch's operations, so that it is differentiable itself.
// `of_rows` is the gradient of each row's loss: one number, or one per row.
at::Tensor cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyRules& rules, const at::Tensor& of_rows);

}  // namespace accelerant::nn
