// Cross entropy of logits and class indices, behind raw pointers: the CUDA kernels compile and can
// be called without torch headers.
//
// Logits are read once in each direction, in their own type; rows are computed in float32 and
// summed in float64.
#pragma once

#include <cstdint>

#include "kernels/amp_kernels.h"

namespace accelerant::kernels {

// The classes of a row are contiguous.
struct LogitRows {
  const void* data;
  ScalarKind kind;      // float16, bfloat16 or float32
  std::int64_t stride;  // elements from row to row
  std::int64_t rows;
  std::int32_t classes;
};

// The class of each row, and how rows and classes count.
struct ClassTargets {
  const std::int64_t* classes;
  std::int64_t ignore_index;  // rows of this class are ignored
  double label_smoothing;     // the share spread over all classes
};

// The logarithm of a row's softmax is (logit - max) - log_sum.
struct RowStatistics {
  float max;
  float log_sum;
};

enum class LossReduction : std::uint8_t { mean, sum };

// The gradient of the loss of row i is upstream[i * stride] * *factor; a null pointer means 1.
struct LossGradient {
  const float* upstream;
  std::int64_t stride;
  const float* factor;
};

namespace cuda {

// Computes losses[i] and statistics[i] of each row. An invalid class aborts all work on the device,
// as in torch.
void cross_entropy(const LogitRows& logits, const ClassTargets& targets, RowStatistics* statistics,
                   float* losses, void* stream);

// Computes their sum or mean, and the factor of each loss in it.
void reduce_losses(const float* losses, std::int64_t rows, const ClassTargets& targets,
                   LossReduction reduction, float* loss, float* factor, void* stream);

// Computes the gradient of the logits: contiguous rows, in the type of the logits.
void cross_entropy_backward(const LogitRows& logits, const ClassTargets& targets,
                            const RowStatistics* statistics, const LossGradient& of_losses,
                            void* gradient, void* stream);

}  // namespace cuda
}  // namespace accelerant::kernels
