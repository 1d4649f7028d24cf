// Copies between tensors and bytes, through small buffers if the bytes cannot be accessed directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/weight_file.h"

namespace accelerant::checkpoint {

// A tensor of a file, and the tensor to fill, of the same shape. Other types are converted; the
// file's type must be one of torch's. read_tensors() throws Error for other shapes and types.
struct TensorCopy {
  const WeightFile* file = nullptr;
  const WeightTensor* stored = nullptr;
  at::Tensor target = {};
};

// How many threads read files: as many as torch uses, but at most 16.
int reading_threads();

// Fills all targets, with as many threads as torch uses but at most 16. In addition, at most one
// converted tensor, two buffers of 32 MiB for transfers to a GPU, and a block of the file per
// thread are in memory. When it returns, all targets are filled, also those on a GPU. Files that
// are compared with their checksums while they are read throw Error for damage; any part of the
// targets may be filled then, but not with damaged bytes.
void read_tensors(const std::vector<TensorCopy>& copies);

// A new tensor on the CPU. Throws an Error that begins with `where` and says how much memory is
// missing: the shape may come from a file.
at::Tensor new_tensor(at::IntArrayRef shape, c10::ScalarType type, const std::string& where);

// Calls `take` with all bytes of the tensor in row-major order, in one or more pieces. In addition,
// at most 4 MiB are in memory for a tensor on the CPU, and one copy of a tensor elsewhere or of a
// conjugate view.
void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace accelerant::checkpoint
