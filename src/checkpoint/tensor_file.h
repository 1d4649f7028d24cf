// One file of a saved model, whatever its format: tensors by name.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accelerant::checkpoint {

struct StoredTensor {
  std::string name = {};
  std::optional<c10::ScalarType> type = {};  // nothing: one that torch does not have
  std::string type_name = {};                // as the file spells it
  std::vector<int64_t> shape = {};
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  const std::string& path() const { return path_; }

  // In the order in which reading them is fastest.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  // Names that were not stored, because their tensor has another name too: not stored -> stored.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Copies the bytes of a tensor, in row-major order, from `offset` on, as many as `target` has.
  virtual void read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> target) = 0;

 protected:
  explicit TensorFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> aliases_;
};

// A safetensors file, one of Python's torch.save that holds a dict of tensors, or one of torch::save in C++ that holds
// a module, of which the tensors are taken.
std::unique_ptr<TensorFile> open_tensor_file(const std::string& path);

}  // namespace accelerant::checkpoint
