// The elements of a tensor as a list of whole numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

inline std::vector<int64_t> list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).flatten().contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}
