#include "format/plain_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
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

// Walks through the elements in row-major order. Dimensions that lie in the storage like one are
// one here, so most tensors are copied in long runs.
class RowWalk {
 public:
  RowWalk(const PlainTensor& tensor, std::size_t element_size)
      : source_(tensor.storage->bytes().data()), element_size_(element_size) {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const auto size = static_cast<uint64_t>(tensor.shape[i]);
      const auto stride = static_cast<uint64_t>(tensor.strides[i]);
      if (size == 1) continue;  // its stride may be any number
      if (!dims_.empty() && dims_.back().stride == stride * size) {
        dims_.back() = {.size = dims_.back().size * size, .stride = stride};
      } else {
        dims_.push_back({.size = size, .stride = stride});
      }
    }
    if (dims_.empty()) dims_.push_back({.size = 1, .stride = 1});
    at_ = static_cast<uint64_t>(tensor.storage_offset);
  }

  void go_to(uint64_t index) {
    for (std::size_t i = dims_.size(); i-- > 0;) {
      dims_[i].place = index % dims_[i].size;
      index /= dims_[i].size;
      at_ += dims_[i].place * dims_[i].stride;
    }
  }

  // Copies whole elements and moves on.
  void copy(std::span<std::byte> target) {
    uint64_t left = target.size() / element_size_;
    std::byte* to = target.data();
    while (left > 0) {
      const Dim& inner = dims_.back();
      const uint64_t count = std::min(left, inner.size - inner.place);
      copy_run(to, count, inner.stride);
      to += count * element_size_;
      left -= count;
      advance(count);
    }
  }

  const std::byte* element() const { return source_ + at_ * element_size_; }

  // By at most the rest of a run.
  void advance(uint64_t count) {
    dims_.back().place += count;
    at_ += count * dims_.back().stride;
    for (std::size_t i = dims_.size(); i-- > 1 && dims_[i].place == dims_[i].size;) {
      at_ -= dims_[i].place * dims_[i].stride;
      dims_[i].place = 0;
      ++dims_[i - 1].place;
      at_ += dims_[i - 1].stride;
    }
  }

 private:
  struct Dim {
    uint64_t size = 0;
    uint64_t stride = 0;  // in elements
    uint64_t place = 0;
  };

  void copy_run(std::byte* to, uint64_t count, uint64_t stride) const {
    if (stride == 1) {
      std::memcpy(to, element(), count * element_size_);
      return;
    }
    // A size that the compiler knows makes each copy a single instruction.
    const auto gather = [&]<std::size_t size>(std::integral_constant<std::size_t, size>) {
      const std::byte* from = element();
      for (uint64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * size, from + i * stride * size, size);
      }
    };
    switch (element_size_) {
      case 1:
        return gather(std::integral_constant<std::size_t, 1>());
      case 2:
        return gather(std::integral_constant<std::size_t, 2>());
      case 4:
        return gather(std::integral_constant<std::size_t, 4>());
      case 8:
        return gather(std::integral_constant<std::size_t, 8>());
      default:
        return gather(std::integral_constant<std::size_t, 16>());
    }
  }

  const std::byte* source_;
  std::size_t element_size_;
  std::vector<Dim> dims_;  // from the outermost
  uint64_t at_ = 0;        // element of the storage
};

}  // namespace

const TorchDtype* find_dtype(std::string_view name) { return find_by(&TorchDtype::name, name); }

const TorchDtype* find_python_dtype(std::string_view python) {
  return find_by(&TorchDtype::python, python);
}

const TorchDtype* find_storage_type(std::string_view storage) {
  return find_by(&TorchDtype::storage, storage);
}

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
    : bytes_(bytes), size_(bytes.size()), owner_(std::move(owner)) {}

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                           std::string key, std::string location, std::function<void()> check)
    : bytes_(bytes),
      size_(bytes.size()),
      owner_(std::move(owner)),
      key_(std::move(key)),
      location_(std::move(location)),
      check_(std::move(check)) {}

PlainStorage::PlainStorage(uint64_t size, std::function<void(ByteSink&)> produce)
    : size_(size), produce_(std::move(produce)) {}

std::span<const std::byte> PlainStorage::bytes() const {
  if (produce_) throw Error("a storage that is made when it is written has no bytes before that");
  if (check_) {
    // Not call_once: with ThreadSanitizer, the call after one that has thrown never returns.
    const std::lock_guard lock(check_mutex_);
    if (!is_checked_) check_();
    is_checked_ = true;
  }
  return bytes_;
}

void PlainStorage::write(ByteSink& sink) const {
  if (produce_) return produce_(sink);
  sink.write(bytes());
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

uint64_t bytes_in_rows(const PlainTensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) *
         static_cast<uint64_t>(dtype_of(tensor, "the tensor").size);
}

void read_in_rows(const PlainTensor& tensor, uint64_t offset, std::span<std::byte> target) {
  check_tensor(tensor, "the tensor");
  const auto element_size = static_cast<std::size_t>(find_dtype(tensor.dtype)->size);
  const uint64_t size = bytes_in_rows(tensor);
  if (offset > size || target.size() > size - offset) {
    throw Error(ErrorDetails{
        .problem = "a part of a tensor reaches beyond its end",
        .expected = "at most " + std::to_string(size) + " bytes",
        .got = std::to_string(target.size()) + " bytes from byte " + std::to_string(offset)});
  }
  if (target.empty()) return;
  RowWalk walk(tensor, element_size);
  walk.go_to(offset / element_size);
  if (const std::size_t skipped = offset % element_size; skipped > 0) {
    const std::size_t part = std::min(element_size - skipped, target.size());
    std::memcpy(target.data(), walk.element() + skipped, part);
    target = target.subspan(part);
    if (target.empty()) return;
    walk.advance(1);
  }
  const std::size_t rest = target.size() % element_size;
  walk.copy(target.first(target.size() - rest));
  if (rest > 0) std::memcpy(target.last(rest).data(), walk.element(), rest);
}

void refuse_expanded(uint64_t bytes, uint64_t held, const std::vector<int64_t>& shape,
                     const std::string& where, const std::string& remedy) {
  if (bytes <= held) return;
  throw Error(ErrorDetails{
      .problem = where + " is an expanded view, which repeats what the file holds once",
      .expected = "at most the " + std::to_string(held) + " bytes that the file holds of it",
      .got = std::to_string(bytes) + " bytes for the shape " + shape_text(shape),
      .hint = "save tensor.contiguous() in Python" + (remedy.empty() ? "" : ", or " + remedy)});
}

void refuse_repeated(uint64_t bytes, uint64_t held, const std::string& path,
                     const std::string& where, const std::string& remedy) {
  constexpr uint64_t most_uses = 16;
  const uint64_t least_held = bytes / most_uses + static_cast<uint64_t>(bytes % most_uses != 0);
  if (least_held <= held) return;
  throw Error(ErrorDetails{.problem = path + " has tensors that repeat what it holds once",
                           .expected = "at most " + std::to_string(most_uses) + " times the " +
                                       std::to_string(held) + " bytes that it holds of them",
                           .got = std::to_string(bytes) + " bytes with " + where,
                           .hint = "save tensor.contiguous() in Python, or " + remedy});
}

void refuse_expanded(const PlainTensor& tensor, const std::string& where,
                     const std::string& remedy) {
  refuse_expanded(bytes_in_rows(tensor), tensor.storage->size(), tensor.shape, where, remedy);
}

}  // namespace accelerant::format
