// Between tensors and bytes, by way of small buffers where the bytes cannot be reached directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "store/weight_file.h"

namespace accelerant::checkpoint {

// A tensor of a file, and the one that is to be filled: of the same shape. Another type is
// converted; the file's own must be one of torch's.
struct TensorCopy {
  const WeightFile* file = nullptr;
  const WeightTensor* stored = nullptr;
  at::Tensor target = {};
};

// Fills all targets, by as many threads as torch uses but at most 8. Besides, at most one tensor
// that is converted, two buffers of 32 MiB for the way to a GPU, and 8 MiB of the file for each
// thread are in memory. The targets are filled when it returns, those on a GPU too.
void read_tensors(const std::vector<TensorCopy>& copies);

// Calls `take` with all bytes of the tensor in row-major order, in one or more pieces. At most one
// copy of the tensor is in memory besides.
void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace accelerant::checkpoint
