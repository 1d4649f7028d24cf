#include "accelerant/data/detail/packing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

constexpr std::size_t kAlignment = 64;  // of every tensor, as in torch's own allocations

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

[[noreturn]] void refuse_layout(const at::Tensor& tensor) {
  throw Error(ErrorDetails{.problem = "A tensor cannot be sent to another process",
                           .expected = "a dense tensor",
                           .got = c10::str("a tensor of layout ", tensor.layout(),
                                           tensor.is_quantized() ? ", quantized" : ""),
                           .hint =
                               "make it dense in the collate function, or let every process read "
                               "its own batches (dispatch_batches = false)"});
}

[[noreturn]] void refuse_message() {
  throw Error(ErrorDetails{.problem = "A batch from another process cannot be read",
                           .expected = "the bytes of a batch of this loader's type",
                           .got = "different or fewer bytes",
                           .hint = "run the same program in all processes, and the loops over "
                                   "loaders in the same order"});
}

}  // namespace

void detail::refuse_to_pack_field() {
  throw Error(ErrorDetails{.problem = "A batch cannot be sent to another process",
                           .expected = "fields that are tensors, numbers, strings, containers of "
                                       "them, or structs that name such fields",
                           .got = "a struct with a field of another type"});
}

// --- Writing -------------------------------------------------------------------------------------

void PackWriter::append(const void* data, std::size_t bytes) {
  structure_.append(static_cast<const char*>(data), bytes);
}

void PackWriter::text(const std::string& value) {
  number(static_cast<uint64_t>(value.size()));
  structure_ += value;
}

void PackWriter::tensor(const at::Tensor& value) {
  number(value.defined());
  if (!value.defined()) return;
  if (value.layout() != at::kStrided || value.is_quantized()) refuse_layout(value);
  at::Tensor plain = value.detach().to(at::kCPU).resolve_conj().resolve_neg();
  // Keep other dense layouts, such as channels last.
  if (!plain.is_non_overlapping_and_dense()) plain = plain.contiguous();
  number(plain.scalar_type());
  number(plain.dim());
  for (const int64_t size : plain.sizes()) number(size);
  for (const int64_t stride : plain.strides()) number(stride);
  tensors_.push_back(std::move(plain));
}

at::Tensor PackWriter::finish() const {
  std::size_t total = aligned(sizeof(uint64_t) + structure_.size());
  for (const at::Tensor& tensor : tensors_) total += aligned(tensor.nbytes());
  at::Tensor bytes = at::empty({static_cast<int64_t>(total)}, at::kByte);
  auto* to = static_cast<char*>(bytes.mutable_data_ptr());
  const uint64_t structure_size = structure_.size();
  std::memcpy(to, &structure_size, sizeof structure_size);
  std::memcpy(to + sizeof structure_size, structure_.data(), structure_.size());
  std::size_t place = aligned(sizeof structure_size + structure_.size());
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.nbytes() > 0) std::memcpy(to + place, tensor.const_data_ptr(), tensor.nbytes());
    place += aligned(tensor.nbytes());
  }
  return bytes;
}

// --- Reading -------------------------------------------------------------------------------------

PackReader::PackReader(at::Tensor bytes) : bytes_(std::move(bytes)) {
  structure_end_ = sizeof(uint64_t);
  uint64_t structure_size = 0;
  take(&structure_size, sizeof structure_size);
  structure_end_ += structure_size;
  payload_ = aligned(structure_end_);
}

void PackReader::take(void* data, std::size_t bytes) {
  if (bytes > structure_end_ - place_ || structure_end_ > bytes_.nbytes()) {
    refuse_message();
  }
  std::memcpy(data, static_cast<const char*>(bytes_.const_data_ptr()) + place_, bytes);
  place_ += bytes;
}

std::string PackReader::text() {
  const auto size = number<uint64_t>();
  std::string value(std::min<std::size_t>(size, bytes_.nbytes()), '\0');
  take(value.data(), size);
  return value;
}

at::Tensor PackReader::tensor() {
  if (!number<bool>()) return {};
  const auto type = number<at::ScalarType>();
  const auto dimensions = number<int64_t>();
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (int64_t i = 0; i < dimensions; ++i) sizes.push_back(number<int64_t>());
  for (int64_t i = 0; i < dimensions; ++i) strides.push_back(number<int64_t>());
  int64_t last = 0;  // element
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) refuse_message();
    last += sizes[i] == 0 ? 0 : (sizes[i] - 1) * strides[i];
  }
  const auto needed = (last + 1) * static_cast<int64_t>(c10::elementSize(type));
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (!empty && static_cast<int64_t>(payload_) + needed > static_cast<int64_t>(bytes_.nbytes()))
    refuse_message();
  auto* from = static_cast<char*>(bytes_.mutable_data_ptr()) + payload_;
  at::Tensor tensor = at::from_blob(
      from, sizes, strides, [block = bytes_](void*) {}, at::TensorOptions(type));
  payload_ += aligned(tensor.nbytes());
  return tensor;
}

}  // namespace accelerant::data
