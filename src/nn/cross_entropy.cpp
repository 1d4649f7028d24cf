#include "accelerant/nn/layers.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/enum.h>

#include "nn/fused_cross_entropy.h"

namespace accelerant::nn::functional {

at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target,
                         const torch::nn::functional::CrossEntropyFuncOptions& options) {
  const CrossEntropyRules rules{
      .ignore_index = options.ignore_index(),
      .label_smoothing = options.label_smoothing(),
      .reduction = torch::enumtype::reduction_get_enum(options.reduction())};
  if (!options.weight().defined() && can_fuse_cross_entropy(input, target, rules)) {
    return fused_cross_entropy(input, target, rules);
  }
  const bool is_16_bit = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  const auto widened = [&](const at::Tensor& tensor) {
    return is_16_bit && tensor.defined() ? tensor.to(at::kFloat) : tensor;
  };
  return at::cross_entropy_loss(widened(input), target, widened(options.weight()), rules.reduction,
                                rules.ignore_index, rules.label_smoothing);
}

}  // namespace accelerant::nn::functional
