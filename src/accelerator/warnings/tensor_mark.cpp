#include "accelerator/warnings/tensor_mark.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "accelerator/prepared/optimizer_tensors.h"
#include "paging/residency.h"

namespace accelerant::detail {

TensorMark mark_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.tensor = tensor.unsafeGetTensorImpl(), .version = tensor._version()};
}

TensorMark mark_of_parameter(const at::Tensor& parameter) {
  TensorMark mark = mark_of(parameter);
  if (parameter.defined() && parameter.is_cpu() && parameter.is_contiguous() &&
      !paging::is_paged(parameter)) {
    constexpr std::size_t most_bytes = 64;
    const std::size_t bytes = std::min(parameter.nbytes(), most_bytes);
    mark.values = std::hash<std::string_view>()(
        {static_cast<const char*>(parameter.const_data_ptr()), bytes});
  }
  return mark;
}

at::Tensor witness_of(torch::optim::Optimizer& optimizer) {
  at::Tensor found;
  any_parameter(optimizer, [&](const at::Tensor& parameter) {
    if (!parameter.requires_grad()) return false;
    found = parameter;
    return true;
  });
  return found;
}

}  // namespace accelerant::detail
