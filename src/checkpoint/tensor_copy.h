// Copies between tensors and bytes, through small buffers if the bytes cannot be accessed directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "store/weight_file.h"

namespace accelerant::checkpoint {

// A tensor of a file, and the tensor to fill, of the same shape. Other types are converted; the
// file's type must be one of torch's.
struct TensorCopy {
  const WeightFile* file = nullptr;
  const WeightTensor* stored = nullptr;
  at::Tensor target = {};
};

// Fills all targets, with as many threads as torch uses but at most 16. In addition, at most one
// converted tensor, two buffers of 32 MiB for transfers to a GPU, and 8 MiB of the file per thread
// are in memory. When it returns, all targets are filled, also those on a GPU.
void read_tensors(const std::vector<TensorCopy>& copies);

// Calls `take` with all bytes of the tensor in row-major order, in one or more pieces. At most one
// copy of the tensor is in memory in addition.
void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace accelerant::checkpoint
