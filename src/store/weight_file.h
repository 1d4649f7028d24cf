// One file that holds tensors, whatever its format, read without torch.
//
//   const auto file = open_weight_file("model.safetensors");
//   for (const WeightTensor& tensor : file->tensors()) file->for_each_piece(tensor, use);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/format/safetensors_file.h"
#include "format/plain_value.h"

namespace accelerant::checkpoint {

struct WeightTensor {
  std::string name = {};
  std::string dtype = {};                  // as the file spells it
  std::optional<format::DType> type = {};  // none: one that safetensors lacks
  std::vector<std::int64_t> shape = {};
  std::uint64_t bytes = 0;  // of its elements
  std::size_t number = 0;   // of the tensor in its file

  std::uint64_t elements() const;
};

using UsePiece = std::function<void(std::span<const std::byte>)>;

class WeightFile {
 public:
  virtual ~WeightFile() = default;

  const std::string& path() const { return path_; }

  // In the order in which reading them is fastest.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }

  // Other names of tensors: not in tensors() -> in tensors().
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Whether an index names aliases too. A safetensors file only has them in its metadata.
  virtual bool stores_aliases() const = 0;

  // Free text of the file, without what tells of aliases.
  const format::Metadata& metadata() const { return metadata_; }

  // Numbers and texts beside the tensors, of a torch file: path -> JSON text.
  const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }

  // Python's attributes of a state dict, of a torch file: the versions of modules.
  const std::vector<format::PlainItem>& attributes() const { return attributes_; }

  // Whether it is a model's: a name for each tensor and nothing else.
  bool is_weights() const { return other_content_.empty(); }

  // What makes it something else: "a Python list under the name 'x'".
  const std::string& other_content() const { return other_content_; }

  // "safetensors" or "torch".
  virtual const char* format() const = 0;

  // Copies the bytes of a tensor, in row-major order, from `offset` on, as many as `target` has.
  // Any number of threads may call it.
  virtual void read(const WeightTensor& tensor, std::uint64_t offset,
                    std::span<std::byte> target) const = 0;

  // Calls `use` with the bytes of a tensor, in row-major order, piece by piece. A piece holds whole
  // elements.
  void for_each_piece(const WeightTensor& tensor, const UsePiece& use) const;

  // All bytes of a tensor without a copy where that is possible; otherwise they are copied to
  // `buffer`.
  virtual std::span<const std::byte> view(const WeightTensor& tensor,
                                          std::vector<std::byte>& buffer) const = 0;

  // Reads everything; an Error for what is damaged.
  virtual void check() const = 0;

 protected:
  explicit WeightFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<WeightTensor> tensors_;
  std::map<std::string, std::string> aliases_;
  format::Metadata metadata_;
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<format::PlainItem> attributes_;
  std::string other_content_;
};

// A safetensors file, one of Python's torch.save, or one of torch::save in C++ that holds a module,
// of which the tensors are taken; whatever its name.
std::unique_ptr<WeightFile> open_weight_file(const std::string& path);

// The second and third of these.
std::unique_ptr<WeightFile> open_torch_file(const std::string& path);

}  // namespace accelerant::checkpoint
