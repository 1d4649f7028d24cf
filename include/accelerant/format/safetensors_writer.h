// Writes safetensors files, byte for byte like the reference implementation, without torch.
//
//   std::vector<TensorToWrite> tensors;
//   tensors.push_back({.name = "weight", .dtype = DType::f32, .shape = {2, 3}, .data = bytes});
//   tensors.push_back({.name = "large", .dtype = DType::bf16, .shape = {n},
//                      .produce = [&](ByteSink& sink) { ... sink.write(piece) ... }});
//   save_safetensors("model.safetensors", std::move(tensors), Metadata{{"format", "pt"}});
//
// Tensors are laid out by type and name, so equal tensors give equal files in whatever order they
// are passed, and every tensor is aligned for its type. Everything is checked before the first byte
// is written: names (UTF-8, unique, not "__metadata__"), sizes, the length of the header.
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
  // Any UTF-8 text except "__metadata__".
  std::string name = {};

  // The type of an element.
  DType dtype = DType::f32;

  // Row-major; empty for a scalar.
  std::vector<std::int64_t> shape = {};

  // The bytes, little-endian; exactly as many as shape and dtype need. Borrowed until written.
  std::span<const std::byte> data = {};

  // Alternatively, a function that writes these bytes to the sink when their turn comes, in pieces
  // of any size, so a tensor on a GPU need not be copied whole. Called once per write().
  std::function<void(ByteSink& sink)> produce = {};
};

class SafetensorsWriter {
 public:
  // Plans the file and checks everything; throws Error, which names the tensor. Without `metadata`
  // the file has no metadata entry; with an empty one it has an empty entry.
  explicit SafetensorsWriter(std::vector<TensorToWrite> tensors,
                             const std::optional<Metadata>& metadata = std::nullopt);

  // The size of the resulting file, in bytes.
  std::uint64_t file_size() const { return file_size_; }

  // The tensors as they will be laid out in the file.
  std::vector<TensorInfo> layout() const;

  // Writes the file. Throws Error if a `produce` writes more or fewer bytes than its tensor has;
  // the sink has then received part of the file.
  void write(ByteSink& sink) const;

 private:
  std::vector<TensorToWrite> tensors_;  // in the order of the file
  std::vector<std::uint64_t> sizes_;    // their sizes in bytes
  std::string header_;                  // preceded by its length
  std::uint64_t file_size_ = 0;
};

// Writes a file that appears complete or not at all. After an Error, an existing file of that name
// is unchanged.
void save_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::optional<Metadata>& metadata = std::nullopt);

}  // namespace accelerant::format
