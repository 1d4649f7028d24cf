#include "accelerant/data/collate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "accelerant/core/error.h"
#include "data/plain_memory.h"

namespace accelerant::data::detail {
namespace {

template <class T, class Value>
at::Tensor from_values(std::span<const Value> values, at::ScalarType type) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())}, type);
  std::transform(values.begin(), values.end(), result.mutable_data_ptr<T>(),
                 [](Value value) { return static_cast<T>(value); });
  return result;
}

// at::stack for plain memory, without creating a view of every tensor.
at::Tensor stack_plain(std::span<const at::Tensor> tensors) {
  std::vector<int64_t> shape = tensors[0].sizes().vec();
  shape.insert(shape.begin(), static_cast<int64_t>(tensors.size()));
  at::Tensor result = at::empty(shape, tensors[0].options());
  const std::size_t bytes = tensors[0].nbytes();
  if (bytes == 0) return result;
  auto* to = static_cast<std::byte*>(result.mutable_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    std::memcpy(to, tensor.const_data_ptr(), bytes);
    to += bytes;
  }
  return result;
}

}  // namespace

void throw_samples_differ(const std::string& what, int64_t first_index, const std::string& first,
                          int64_t other_index, const std::string& other) {
  throw Error(ErrorDetails{
      .problem = "The samples cannot be combined into a batch",
      .expected = what,
      .got =
          c10::str(first, " in sample ", first_index, " and ", other, " in sample ", other_index),
      .hint = "make them alike in the data set, or give data::loader your own collate function"});
}

at::Tensor collate_tensors(std::span<const at::Tensor> tensors, std::span<const int64_t> indices) {
  const auto shape = [](const at::Tensor& tensor) {
    return tensor.defined() ? c10::str(tensor.sizes()) : "an undefined tensor";
  };
  const at::Tensor& first = tensors[0];
  bool plain = true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool fits =
        tensors[i].defined() && first.defined() && tensors[i].sizes() == first.sizes();
    if (!fits) {
      throw_samples_differ("tensors of the same shape", indices[0], shape(first), indices[i],
                           shape(tensors[i]));
    }
    plain = plain && is_plain_memory(tensors[i]) && tensors[i].dtype() == first.dtype();
  }
  if (plain) return stack_plain(tensors);
  return at::stack(at::TensorList(tensors.data(), tensors.size()));
}

at::Tensor collate_integers(std::span<const int64_t> values) {
  return from_values<int64_t>(values, at::kLong);
}

at::Tensor collate_floats(std::span<const float> values) {
  return from_values<float>(values, at::kFloat);
}

at::Tensor collate_doubles(std::span<const double> values) {
  return from_values<double>(values, at::kDouble);
}

at::Tensor collate_bools(std::span<const int64_t> values) {
  return from_values<bool>(values, at::kBool);
}

}  // namespace accelerant::data::detail
