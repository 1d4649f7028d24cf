// Reads safetensors files, without torch.
//
//   auto file = SafetensorsFile::open("model.safetensors");
//   for (const TensorInfo& tensor : file.tensors()) { ... tensor.name, tensor.dtype, tensor.shape ... }
//   std::span<const std::byte> bytes = file.view("lm_head.weight");   // no copy
//   file.read_slice("embed.weight", {{.begin = 0, .end = 1000}}, target);   // the first 1000 rows
//
// Opening reads and checks the header; tensors are read when asked for. A file is taken only if all
// of it is right: the reference implementation's rules, and stricter where that lets dubious
// files pass (a name twice, a size that overflows beside a zero, more than 64 dimensions). Nothing
// in a file makes the reader allocate more than a small multiple of the header's true size.
//
// A SafetensorsFile owns the open file and the mapping; it moves, and does not copy. Views live as
// long as it, also after it has moved. All const methods may be called from several threads at once.
//
// Bytes in a file are little-endian, and need not be aligned for their type: copy elements out of a
// view with memcpy unless the address happens to be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/format/tensor_info.h"

namespace accelerant::format {

enum class FileAccess {
  map,   // the file is mapped: view() works. It must not shrink while mapped: touching bytes that
         // are gone ends the process
  read,  // nothing is mapped: only the read functions work
};

struct OpenOptions {
  // How bytes are reached. Default: mapped. The read functions do not use that mapping: they report a
  // file that has become shorter since it was opened as an Error.
  FileAccess access = FileAccess::map;
};

class SafetensorsFile {
 public:
  // Throws Error, which names the file, the tensor and the reason, for a file that cannot be read
  // or is not a valid safetensors file.
  static SafetensorsFile open(const std::string& path, const OpenOptions& options = {});

  // The same for a file in memory, which is borrowed: it must outlive the result. `label` stands for
  // the file's name in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string label = "memory");

  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  // The tensors in the order of their data, in which reading them is fastest.
  const std::vector<TensorInfo>& tensors() const;

  // Their names in that order.
  std::vector<std::string_view> names() const;

  // The tensor of that name; if there is none, find() gives nullptr and info() throws Error.
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& info(std::string_view name) const;

  // The file's free text; empty also where it has none.
  const Metadata& metadata() const;

  // Whether the file has an entry for free text, be it empty.
  bool has_metadata() const;

  // The path, or the label.
  const std::string& label() const;

  // The bytes of a tensor where they are. Throws Error if the file was opened with FileAccess::read.
  std::span<const std::byte> view(std::string_view name) const;

  // Copies a tensor to `target`, which must have exactly its size.
  void read(std::string_view name, std::span<std::byte> target) const;

  // Copies the bytes of a tensor from `offset` on, as many as `target` has: for tensors that go
  // through a small buffer, for example on the way to a GPU.
  void read_part(std::string_view name, std::uint64_t offset, std::span<std::byte> target) const;

  // Copies a part of a tensor to `target`, which must have exactly slice_bytes(). One range for each
  // dimension, from the first; missing ones mean the whole dimension. Ranges outside of the tensor
  // are an Error, and so are parts that do not begin and end at whole bytes (F4 and F6).
  void read_slice(std::string_view name, const std::vector<DimRange>& ranges,
                  std::span<std::byte> target) const;
  std::vector<std::int64_t> slice_shape(std::string_view name,
                                        const std::vector<DimRange>& ranges) const;
  std::uint64_t slice_bytes(std::string_view name, const std::vector<DimRange>& ranges) const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<const State> state);

  void copy(std::uint64_t position, std::span<std::byte> target) const;

  std::unique_ptr<const State> state_;
};

}  // namespace accelerant::format
