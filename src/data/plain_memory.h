// Tensors that are plain bytes in CPU memory. Copying them without an operator pays off if there
// are many small ones: rows of a data set, samples of a batch.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerant::data {

inline bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.requires_grad() && !tensor.is_quantized();
}

}  // namespace accelerant::data
