// Tensors as Python programs keep them in checkpoints: element types, storages, and views of
// storages. Knows nothing of torch itself.
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
  std::string_view name;     // as PlainTensor::dtype has it
  std::string_view python;   // after "torch."
  std::string_view storage;  // after "torch."; empty: saved as an UntypedStorage and a dtype
  int64_t size;              // in bytes
  bool differentiable;       // may require a gradient
};

// nullptr if there is none.
const TorchDtype* find_dtype(std::string_view name);
const TorchDtype* find_python_dtype(std::string_view python);
const TorchDtype* find_storage_type(std::string_view storage);

// The memory that one or more tensors look at. Tensors that share a storage hold the same pointer.
class PlainStorage {
 public:
  // `bytes` must stay as they are while the storage lives; `owner` is kept alive for that, and may
  // be empty where the caller sees to it.
  explicit PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner = {});

  // A storage of a file, where it is called `key`. `check` runs once, before bytes() first returns,
  // and throws if the bytes are damaged.
  PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string key,
               std::string location, std::function<void()> check);

  // The content, little-endian. The first call for a storage of a file compares the checksum, that
  // is, reads it all, and throws an Error when it is wrong; any number of threads may call.
  // Storages of files begin at a multiple of 64 bytes if torch or this library wrote the file, and
  // anywhere else if not.
  std::span<const std::byte> bytes() const;

  // In bytes.
  uint64_t size() const { return bytes_.size(); }

  // The name in the file it came from, such as "0"; empty for storages made by a program.
  const std::string& key() const { return key_; }

  // Where Python had it, such as "cpu" or "cuda:0". The writer writes it down, and torch.load puts
  // the tensor there unless its map_location says otherwise.
  const std::string& location() const { return location_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
  std::string key_;
  std::string location_ = "cpu";
  std::function<void()> check_;
  mutable std::once_flag checked_;
};

// A tensor: how to look at a storage. Element (i, j, ...) is the one number
// storage_offset + i * strides[0] + j * strides[1] + ... of the storage.
struct PlainTensor {
  // The element type as safetensors spells it: BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F16,
  // BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0, C64; and C32 and C128,
  // which it lacks.
  std::string dtype = "F32";
  std::vector<int64_t> shape = {};                        // empty: one element, no dimensions
  std::vector<int64_t> strides = {};                      // as many as shape has; in elements
  int64_t storage_offset = 0;                             // in elements
  std::shared_ptr<const PlainStorage> storage = nullptr;  // never null in what a reader returns
  bool requires_grad = false;  // of the tensor, or of the Parameter it is in
  bool is_parameter = false;   // a torch.nn.Parameter

  // A tensor over the whole of a storage, in row-major order.
  static PlainTensor contiguous(std::string dtype, std::vector<int64_t> shape,
                                std::shared_ptr<const PlainStorage> storage);

  // The number of elements.
  int64_t numel() const;
};

// Throws an Error that begins with `where` unless the dtype is known, shape and strides fit each
// other, and every element lies inside the storage.
void check_tensor(const PlainTensor& tensor, const std::string& where);

// Whether the elements lie in row-major order in the storage.
bool is_row_major(const PlainTensor& tensor);

// The elements in row-major order. Where they lie so in the storage, this is a view of it and
// `buffer` stays as it is; otherwise they are copied into `buffer`. With strides of 0 they may be
// many more than the storage has.
std::span<const std::byte> row_major_bytes(const PlainTensor& tensor,
                                           std::vector<std::byte>& buffer);

}  // namespace accelerant::format
