#include "accelerant/data/dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/util/StringUtil.h>

#include <cstring>

#include "accelerant/core/error.h"
#include "data/plain_memory.h"

namespace accelerant::data::detail {
namespace {

void check_index(int64_t index, int64_t length) {
  if (index >= 0 && index < length) return;
  throw Error(ErrorDetails{.problem = "The index is out of range for the tensors of the data set",
                           .expected = c10::str("0 <= index < ", length),
                           .got = std::to_string(index)});
}

at::Tensor copy_plain_rows(const at::Tensor& tensor, const std::vector<int64_t>& indices) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[0] = static_cast<int64_t>(indices.size());
  at::Tensor rows = at::empty(shape, tensor.options());
  if (rows.numel() == 0) return rows;
  const std::size_t bytes = rows.nbytes() / indices.size();
  const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
  auto* to = static_cast<std::byte*>(rows.mutable_data_ptr());
  for (const int64_t index : indices) {
    std::memcpy(to, from + static_cast<std::size_t>(index) * bytes, bytes);
    to += bytes;
  }
  return rows;
}

at::Tensor index_tensor(const std::vector<int64_t>& indices, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), indices.data(), indices.size() * sizeof(int64_t));
  return tensor.to(device);
}

}  // namespace

void check_same_length(std::span<const at::Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dim() == 0) {
      throw Error(
          ErrorDetails{.problem = "data::tensors cannot take samples from a tensor without rows",
                       .expected = "tensors with at least one dimension",
                       .got = c10::str(tensors[i].defined() ? "a scalar" : "an undefined tensor",
                                       " as tensor ", i)});
    }
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw Error(ErrorDetails{.problem = "The tensors of a data set have different lengths",
                               .expected = c10::str("the length of tensor 0, ", tensors[0].size(0)),
                               .got = c10::str("length ", tensors[i].size(0), " of tensor ", i)});
    }
  }
}

void select_rows(std::span<const at::Tensor> tensors, const std::vector<int64_t>& indices,
                 std::span<at::Tensor> rows) {
  for (const int64_t index : indices) check_index(index, tensors[0].size(0));
  at::Tensor positions;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_plain_memory(tensors[i])) {
      rows[i] = copy_plain_rows(tensors[i], indices);
      continue;
    }
    if (!positions.defined() || positions.device() != tensors[i].device()) {
      positions = index_tensor(indices, tensors[i].device());
    }
    rows[i] = at::index_select(tensors[i], 0, positions);
  }
}

}  // namespace accelerant::data::detail
