// Tensors as Python programs keep them in checkpoints: element types, storages, and views of
// storages. Independent of torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::format {

// An element type of torch: its names here, in Python, and as a storage in pickles.
struct TorchDtype {
  std::string_view name;     // as in PlainTensor::dtype
  std::string_view python;   // after "torch."
  std::string_view storage;  // after "torch."; empty: saved as an UntypedStorage and a dtype
  int64_t size;              // in bytes
  bool differentiable;       // may require a gradient
};

// nullptr if there is none.
const TorchDtype* find_dtype(std::string_view name);
const TorchDtype* find_python_dtype(std::string_view python);
const TorchDtype* find_storage_type(std::string_view storage);

// The memory behind one or more tensors. Tensors that share a storage hold the same pointer.
class PlainStorage {
 public:
  // `bytes` must stay unchanged while the storage lives; `owner` keeps them alive, and may be empty
  // if the caller does.
  explicit PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = {});

  // A storage in a file, where its name is `key`. `check` runs once, before bytes() first returns,
  // and throws if the bytes are damaged.
  PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string key,
               std::string location, std::function<void()> check);

  // The content, little-endian. For a storage of a file, the first call reads it all to compare its
  // checksum, and throws Error if the checksum is wrong. Thread-safe. Storages of files are aligned
  // to 64 bytes if torch or this library wrote the file, but may not be otherwise.
  std::span<const std::byte> bytes() const;

  // In bytes.
  uint64_t size() const { return bytes_.size(); }

  // The name in the file it came from, such as "0"; empty for storages created by a program.
  const std::string& key() const { return key_; }

  // Where Python had it, such as "cpu" or "cuda:0". The writer records it, and torch.load puts the
  // tensor there unless its map_location says otherwise.
  const std::string& location() const { return location_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
  std::string key_;
  std::string location_ = "cpu";
  std::function<void()> check_;
  mutable std::once_flag checked_;
};

// A tensor: a view of a storage. Element (i, j, ...) is at index storage_offset + i * strides[0] +
// j * strides[1] + ... of the storage.
struct PlainTensor {
  // The element type as safetensors spells it: BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F16,
  // BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0, C64; also C32 and C128,
  // which safetensors lacks.
  std::string dtype = "F32";
  std::vector<int64_t> shape = {};                        // empty: one element, no dimensions
  std::vector<int64_t> strides = {};                      // in elements; as many as shape has
  int64_t storage_offset = 0;                             // in elements
  std::shared_ptr<const PlainStorage> storage = nullptr;  // never null in what a reader returns
  bool requires_grad = false;                             // of the tensor, or of its Parameter
  bool is_parameter = false;                              // a torch.nn.Parameter

  // A tensor over the whole of a storage, in row-major order.
  static PlainTensor contiguous(std::string dtype, std::vector<int64_t> shape,
                                std::shared_ptr<const PlainStorage> storage);

  // The number of elements.
  int64_t numel() const;
};

// Throws an Error that begins with `where` unless the dtype is known, shape and strides match, and
// every element lies inside the storage.
void check_tensor(const PlainTensor& tensor, const std::string& where);

// Whether the elements lie in row-major order in the storage.
bool is_row_major(const PlainTensor& tensor);

// The elements in row-major order. If the storage has them in that order, this is a view of it and
// `buffer` is not used; otherwise they are copied into `buffer`. With strides of 0 there may be
// many more elements than the storage has.
std::span<const std::byte> row_major_bytes(const PlainTensor& tensor,
                                           std::vector<std::byte>& buffer);

}  // namespace accelerant::format
