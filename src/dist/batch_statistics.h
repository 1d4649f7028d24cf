// The exchanges of SyncBatchNorm.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// Over the batches of all processes, per channel; float32, or float64 for float64 input.
struct BatchStatistics {
  at::Tensor mean;
  at::Tensor var;     // biased
  at::Tensor counts;  // values per channel of each process; int32, as torch's kernels need
  at::Tensor total;   // their sum, with one element, in the type of the mean
};

BatchStatistics gather_statistics(const World& world, const at::Tensor& input);

// (input - mean) / sqrt(var + eps) * weight + bias, differentiable through the statistics.
at::Tensor normalize(const std::weak_ptr<World>& world, const at::Tensor& input,
                     const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps);

}  // namespace accelerant::dist
