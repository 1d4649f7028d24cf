// Between tensors and bytes, by way of small buffers where the bytes cannot be reached directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>

#include "checkpoint/tensor_file.h"

namespace accelerant::checkpoint {

// Copies tensors out of files. The two buffers for a GPU are made once and used for all tensors.
class TensorReader {
 public:
  // Fills `target`, which has the shape of the stored tensor; another type is converted. The file's own type
  // must be one of torch's. At most one tensor is in memory besides.
  void read(TensorFile& file, const StoredTensor& stored, const at::Tensor& target);

 private:
  void read_to_device(TensorFile& file, const StoredTensor& stored, const at::Tensor& target);

  at::Tensor staging_[2];
};

// Calls `take` with all bytes of the tensor in row-major order, in one or more pieces. At most one copy of the
// tensor is in memory besides.
void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace accelerant::checkpoint
