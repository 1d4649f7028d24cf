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

#include "accelerant/core/detail/byte_sink.h"

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

  // A storage that is made when it is written, so that it need not fit into memory: `produce` gives
  // the sink `size` bytes, in pieces of any size, whenever write() is called.
  PlainStorage(uint64_t size, std::function<void(ByteSink& sink)> produce);

  // The content, little-endian. For a storage of a file, the first call reads it all to compare its
  // checksum, and throws Error if the checksum is wrong. Thread-safe. Storages of files are aligned
  // to 64 bytes if torch or this library wrote the file, but may not be otherwise. Throws Error for
  // a storage that is made when it is written.
  std::span<const std::byte> bytes() const;

  // Gives the sink the content.
  void write(ByteSink& sink) const;

  // In bytes.
  uint64_t size() const { return size_; }

  // The name in the file it came from, such as "0"; empty for storages created by a program.
  const std::string& key() const { return key_; }

  // Where Python had it, such as "cpu" or "cuda:0". The writer records it, and torch.load puts the
  // tensor there unless its map_location says otherwise.
  const std::string& location() const { return location_; }

 private:
  std::span<const std::byte> bytes_;
  uint64_t size_;
  std::function<void(ByteSink&)> produce_;
  std::shared_ptr<const void> owner_;
  std::string key_;
  std::string location_ = "cpu";
  std::function<void()> check_;
  mutable std::mutex check_mutex_;
  mutable bool is_checked_ = false;
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

// The bytes that the elements take in row-major order.
uint64_t bytes_in_rows(const PlainTensor& tensor);

// Copies as many bytes as `target` has, from `offset` on, of the elements in row-major order. Needs
// no memory, however the tensor lies in its storage.
void read_in_rows(const PlainTensor& tensor, uint64_t offset, std::span<std::byte> target);

// Throws an Error that begins with `where` if the tensor repeats elements (with strides of 0, say),
// so that in rows it takes more bytes than its whole storage has: a file of 500 bytes may hold a
// tensor of 4 TB. `remedy` says how to allow it; may be empty.
void refuse_expanded(const PlainTensor& tensor, const std::string& where,
                     const std::string& remedy);

// The same for a tensor that takes `bytes` of which the file holds `held`.
void refuse_expanded(uint64_t bytes, uint64_t held, const std::vector<int64_t>& shape,
                     const std::string& where, const std::string& remedy);

// Tensors that share a storage may each be a part of it and together still repeat it any number of
// times. Throws Error if those of the file `path`, up to the one that `where` names, take more than
// 16 times the bytes that the file holds of them.
void refuse_repeated(uint64_t bytes, uint64_t held, const std::string& path,
                     const std::string& where, const std::string& remedy);

}  // namespace accelerant::format
