#include "format/plain_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"

namespace accelerant::format {
namespace {

constexpr auto torch_dtype_table = std::to_array<TorchDtype>({
    {"F64", "float64", "DoubleStorage", 8, true},
    {"F32", "float32", "FloatStorage", 4, true},
    {"F16", "float16", "HalfStorage", 2, true},
    {"BF16", "bfloat16", "BFloat16Storage", 2, true},
    {"I64", "int64", "LongStorage", 8, false},
    {"I32", "int32", "IntStorage", 4, false},
    {"I16", "int16", "ShortStorage", 2, false},
    {"I8", "int8", "CharStorage", 1, false},
    {"U8", "uint8", "ByteStorage", 1, false},
    {"BOOL", "bool", "BoolStorage", 1, false},
    {"C128", "complex128", "ComplexDoubleStorage", 16, true},
    {"C64", "complex64", "ComplexFloatStorage", 8, true},
    {"C32", "complex32", "", 4, true},
    {"U16", "uint16", "", 2, false},
    {"U32", "uint32", "", 4, false},
    {"U64", "uint64", "", 8, false},
    {"F8_E5M2", "float8_e5m2", "", 1, true},
    {"F8_E4M3", "float8_e4m3fn", "", 1, true},
    {"F8_E5M2FNUZ", "float8_e5m2fnuz", "", 1, true},
    {"F8_E4M3FNUZ", "float8_e4m3fnuz", "", 1, true},
    {"F8_E8M0", "float8_e8m0fnu", "", 1, true},
});

const TorchDtype* find_by(std::string_view TorchDtype::*member, std::string_view text) {
  const auto found = std::ranges::find(torch_dtype_table, text, member);
  return text.empty() || found == torch_dtype_table.end() ? nullptr : &*found;
}

// The limit of torch's own loops.
constexpr std::size_t most_dimensions = 64;

const TorchDtype& dtype_of(const PlainTensor& tensor, const std::string& where) {
  const TorchDtype* const dtype = find_dtype(tensor.dtype);
  if (dtype == nullptr) {
    throw Error(ErrorDetails{.problem = where + " has an unknown dtype",
                             .expected = "a name such as F32 or BF16",
                             .got = "'" + tensor.dtype + "'"});
  }
  return *dtype;
}

void copy_row_major(const PlainTensor& tensor, const std::byte* source, std::size_t element_size,
                    std::byte* target) {
  std::vector<int64_t> place(tensor.shape.size(), 0);
  // Unsigned, because the stride of a dimension of size 1 may be any number, and is added and
  // subtracted here without being used.
  auto offset = static_cast<uint64_t>(tensor.storage_offset);
  for (int64_t left = tensor.numel(); left > 0; --left) {
    std::memcpy(target, source + offset * element_size, element_size);
    target += element_size;
    for (std::size_t i = place.size(); i-- > 0;) {
      const auto stride = static_cast<uint64_t>(tensor.strides[i]);
      offset += stride;
      if (++place[i] < tensor.shape[i]) break;
      offset -= stride * static_cast<uint64_t>(tensor.shape[i]);
      place[i] = 0;
    }
  }
}

}  // namespace

const TorchDtype* find_dtype(std::string_view name) { return find_by(&TorchDtype::name, name); }

const TorchDtype* find_python_dtype(std::string_view python) {
  return find_by(&TorchDtype::python, python);
}

const TorchDtype* find_storage_type(std::string_view storage) {
  return find_by(&TorchDtype::storage, storage);
}

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
    : bytes_(bytes), owner_(std::move(owner)) {}

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                           std::string key, std::string location, std::function<void()> check)
    : bytes_(bytes),
      owner_(std::move(owner)),
      key_(std::move(key)),
      location_(std::move(location)),
      check_(std::move(check)) {}

std::span<const std::byte> PlainStorage::bytes() const {
  // A check that throws leaves the flag unset, so the next call throws too.
  if (check_) std::call_once(checked_, check_);
  return bytes_;
}

bool is_row_major(const PlainTensor& tensor) {
  int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

int64_t PlainTensor::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

PlainTensor PlainTensor::contiguous(std::string dtype, std::vector<int64_t> shape,
                                    std::shared_ptr<const PlainStorage> storage) {
  PlainTensor tensor;
  tensor.dtype = std::move(dtype);
  tensor.shape = std::move(shape);
  tensor.storage = std::move(storage);
  tensor.strides.resize(tensor.shape.size());
  int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    tensor.strides[i] = stride;
    // As in torch, a dimension of size 0 does not make the strides 0. A stride that overflows does
    // not fit the storage either.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(tensor.shape[i], 1), &stride)) {
      throw Error(ErrorDetails{.problem = "a tensor's shape is too large",
                               .expected = "fewer than 2^63 elements",
                               .got = shape_text(tensor.shape)});
    }
  }
  check_tensor(tensor, "the tensor");
  return tensor;
}

void check_tensor(const PlainTensor& tensor, const std::string& where) {
  const TorchDtype& dtype = dtype_of(tensor, where);
  const auto fail = [&](const std::string& what, const std::string& expected) {
    throw Error(ErrorDetails{.problem = where + " " + what,
                             .expected = expected,
                             .got = "shape " + shape_text(tensor.shape) + ", strides " +
                                    shape_text(tensor.strides) + ", offset " +
                                    std::to_string(tensor.storage_offset)});
  };
  if (tensor.storage == nullptr) throw Error(ErrorDetails{.problem = where + " has no storage"});
  if (tensor.shape.size() > most_dimensions) {
    throw Error(ErrorDetails{.problem = where + " has too many dimensions",
                             .expected = "at most " + std::to_string(most_dimensions),
                             .got = std::to_string(tensor.shape.size())});
  }
  if (tensor.strides.size() != tensor.shape.size()) {
    fail("has the wrong number of strides", "one per dimension");
  }
  if (tensor.requires_grad && !dtype.differentiable) {
    throw Error(ErrorDetails{.problem = where + " cannot require a gradient",
                             .expected = "a floating-point or complex dtype",
                             .got = tensor.dtype});
  }
  if (tensor.storage_offset < 0 ||
      std::ranges::any_of(tensor.shape, [](auto n) { return n < 0; }) ||
      std::ranges::any_of(tensor.strides, [](auto n) { return n < 0; })) {
    fail("has a negative size, stride or offset", "none of them");
  }
  // Check sizes and strides for overflow even if another size is 0: code that walks the tensor
  // multiplies them in its own order.
  int64_t last = tensor.storage_offset;
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t size = std::max<int64_t>(tensor.shape[i], 1);
    int64_t reach = 0;
    empty = empty || tensor.shape[i] == 0;
    overflow = overflow || __builtin_mul_overflow(count, size, &count) ||
               __builtin_mul_overflow(size - 1, tensor.strides[i], &reach) ||
               __builtin_add_overflow(last, reach, &last);
  }
  int64_t end = 0;
  int64_t bytes = 0;
  overflow = overflow || __builtin_add_overflow(last, int64_t{1}, &end) ||
             __builtin_mul_overflow(end, dtype.size, &end) ||
             __builtin_mul_overflow(count, dtype.size, &bytes);
  if (overflow) fail("is too large", "fewer than 2^63 bytes");
  if (!empty && static_cast<uint64_t>(end) > tensor.storage->size()) {
    fail("reaches beyond its storage",
         "at most " + std::to_string(tensor.storage->size()) + " bytes of " + tensor.dtype);
  }
}

std::span<const std::byte> row_major_bytes(const PlainTensor& tensor,
                                           std::vector<std::byte>& buffer) {
  check_tensor(tensor, "the tensor");
  const auto element_size = static_cast<std::size_t>(find_dtype(tensor.dtype)->size);
  const std::size_t size = static_cast<std::size_t>(tensor.numel()) * element_size;
  if (size == 0) return {};
  const std::span<const std::byte> all = tensor.storage->bytes();
  if (is_row_major(tensor)) {
    return all.subspan(static_cast<std::size_t>(tensor.storage_offset) * element_size, size);
  }
  buffer.resize(size);
  copy_row_major(tensor, all.data(), element_size, buffer.data());
  return buffer;
}

}  // namespace accelerant::format
