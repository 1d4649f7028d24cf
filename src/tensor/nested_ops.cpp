#include "accelerant/tensor/nested.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"

namespace accelerant::detail {

at::Tensor moved(const at::Tensor& tensor, c10::Device device, bool non_blocking) {
  if (!tensor.defined()) return tensor;
  return tensor.to(at::TensorOptions(device), non_blocking);
}

at::Tensor sliced(const at::Tensor& tensor, int64_t begin, int64_t end) {
  if (!tensor.defined() || tensor.dim() == 0) return tensor;
  return tensor.slice(0, begin, end);
}

at::Tensor padded(const at::Tensor& tensor, int64_t multiple, const PadInputOptions& options) {
  if (multiple < 1) {
    throw Error(ErrorDetails{.problem = "Cannot pad rows to this multiple",
                             .expected = "at least 1",
                             .got = c10::str(multiple)});
  }
  if (!tensor.defined()) return tensor;
  const int64_t dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  if (dim < 0 || dim >= tensor.dim()) return tensor;
  const int64_t rows = tensor.size(dim);
  int64_t missing = (multiple - rows % multiple) % multiple;
  if (missing == 0) return tensor;

  std::vector<at::Tensor> parts = {tensor};
  if (options.fill == PadInputOptions::Fill::zeros) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = missing;
    parts.push_back(at::zeros(shape, tensor.options()));
  } else {
    for (; missing > 0; missing -= std::min(missing, rows)) {
      parts.push_back(tensor.narrow(dim, 0, std::min(missing, rows)));
    }
  }
  return at::cat(parts, dim);
}

at::Tensor concatenated(const std::vector<const at::Tensor*>& tensors, int64_t dim) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->defined()) defined.push_back(*tensor);
  }
  if (defined.empty()) return *tensors.front();
  if (defined.size() != tensors.size()) refuse_different("whether a tensor is defined");
  return at::cat(defined, dim);
}

void require_items(std::size_t count) {
  if (count > 0) return;
  throw Error(ErrorDetails{.problem = "There is nothing to concatenate",
                           .expected = "at least one batch",
                           .got = "none"});
}

void refuse_without_batch() {
  throw Error(ErrorDetails{.problem = "The data has no batch size",
                           .expected = "a tensor with at least one dimension",
                           .got = "no such tensor"});
}

void refuse_different(const std::string& what) {
  throw Error(ErrorDetails{.problem = "Cannot join batches of different structure",
                           .expected = what + " to be the same in all of them"});
}

}  // namespace accelerant::detail
