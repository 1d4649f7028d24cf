// Writes safetensors files, byte for byte as the reference implementation does, without torch.
//
//   std::vector<TensorToWrite> tensors;
//   tensors.push_back({.name = "weight", .dtype = DType::f32, .shape = {2, 3}, .data = bytes});
//   tensors.push_back({.name = "large", .dtype = DType::bf16, .shape = {n},
//                      .produce = [&](ByteSink& sink) { ... sink.write(piece) ... }});
//   save_safetensors("model.safetensors", std::move(tensors), Metadata{{"format", "pt"}});
//
// Tensors are laid out by type and name, so equal tensors give equal files, whatever order they are
// given in, and every tensor is aligned for its type. Everything is checked before the first byte
// is written: names (UTF-8, not twice, not "__metadata__"), sizes, the length of the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"
#include "accelerant/format/safetensors_file.h"

namespace accelerant::format {

struct TensorToWrite {
  // Any UTF-8 text but "__metadata__".
  std::string name = {};

  // The type of an element.
  DType dtype = DType::f32;

  // Row-major; empty for a scalar.
  std::vector<std::int64_t> shape = {};

  // The bytes, little-endian: exactly as many as shape and dtype say. Borrowed until written.
  std::span<const std::byte> data = {};

  // Or a function that writes these bytes to the sink, in pieces of any size, when their turn
  // comes: a tensor on a GPU need not be copied whole. Called once in each write().
  std::function<void(ByteSink& sink)> produce = {};
};

class SafetensorsWriter {
 public:
  // Plans the file and checks everything; throws Error that names the tensor. With `metadata`
  // absent the file has no entry for it, with an empty one it has an empty entry.
  explicit SafetensorsWriter(std::vector<TensorToWrite> tensors,
                             const std::optional<Metadata>& metadata = std::nullopt);

  // The size of the file to be written, in bytes.
  std::uint64_t file_size() const { return file_size_; }

  // The tensors as they will lie in the file.
  std::vector<TensorInfo> layout() const;

  // Writes the file. A `produce` that gives more or fewer bytes than its tensor has is an Error;
  // the sink has then got a part of the file.
  void write(ByteSink& sink) const;

 private:
  std::vector<TensorToWrite> tensors_;  // in the order of the file
  std::vector<std::uint64_t> sizes_;    // of these, in bytes
  std::string header_;                  // with its length in front
  std::uint64_t file_size_ = 0;
};

// Writes a file that appears whole or not at all (AtomicFile). Throws Error; an old file of that
// name then stays as it was.
void save_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::optional<Metadata>& metadata = std::nullopt);

}  // namespace accelerant::format
