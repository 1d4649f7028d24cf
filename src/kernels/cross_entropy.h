// Cross entropy of logits and the indices of classes, behind raw pointers: no torch header is
// needed to compile or to call the CUDA kernels.
//
// Logits are read once in either direction and in the type they have; rows are computed in float32
// and summed up in float64.
#pragma once

#include <cstdint>

#include "kernels/amp_kernels.h"

namespace accelerant::kernels {

// Each row has its classes next to each other.
struct LogitRows {
  const void* data;
  ScalarKind kind;      // float16, bfloat16 or float32
  std::int64_t stride;  // elements from row to row
  std::int64_t rows;
  std::int32_t classes;
};

// The class of each row, and what counts how much.
struct ClassTargets {
  const std::int64_t* classes;
  std::int64_t ignore_index;  // rows of this class have no loss
  double label_smoothing;     // what all classes share, rather than the right one
};

// The logarithm of a row's softmax is (logit - max) - log_sum.
struct RowStatistics {
  float max;
  float log_sum;
};

enum class LossReduction : std::uint8_t { mean, sum };

// The gradient of the loss of row i is upstream[i * stride] * *factor; null stands for 1.
struct LossGradient {
  const float* upstream;
  std::int64_t stride;
  const float* factor;
};

namespace cuda {

// losses[i] and statistics[i] of each row. A class that does not exist stops the device, as it does
// in torch.
void cross_entropy(const LogitRows& logits, const ClassTargets& targets, RowStatistics* statistics,
                   float* losses, void* stream);

// Their sum or mean, and the factor of each of them in it.
void reduce_losses(const float* losses, std::int64_t rows, const ClassTargets& targets,
                   LossReduction reduction, float* loss, float* factor, void* stream);

// The gradient of the logits: rows without gaps, in their type.
void cross_entropy_backward(const LogitRows& logits, const ClassTargets& targets,
                            const RowStatistics* statistics, const LossGradient& of_losses,
                            void* gradient, void* stream);

}  // namespace cuda
}  // namespace accelerant::kernels
