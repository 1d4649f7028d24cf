// What Accelerator::backward can be told.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace accelerant {

struct BackwardOptions {
  // Keep the graph for another backward through it. Default: the same as create_graph.
  std::optional<bool> retain_graph = std::nullopt;

  // Record the backward itself, so that gradients can be differentiated.
  bool create_graph = false;

  // Only these tensors get gradients. Empty: all leaves.
  std::vector<at::Tensor> inputs = {};

  // The factor of each element of the loss, for a loss that is not a single number.
  at::Tensor gradient = {};

  // Throw Error if the loss is inf or nan, before anything else. Costs a wait for the device. false:
  // under fp16 the step is skipped; otherwise the parameters become nan, as in PyTorch.
  bool error_if_nonfinite = false;
};

}  // namespace accelerant
