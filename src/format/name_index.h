// Finds tensors by name.
//
// Uses a sorted list of hashes instead of a hash table: names chosen to collide make it no slower
// than sorting the names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "accelerant/format/safetensors.h"

namespace accelerant::format {

class NameIndex {
 public:
  NameIndex() = default;
  explicit NameIndex(const std::vector<TensorInfo>& tensors);

  // The index of the tensor in the vector, which must be unchanged.
  std::optional<std::size_t> find(const std::vector<TensorInfo>& tensors,
                                  std::string_view name) const;

  // A tensor whose name occurs more than once.
  std::optional<std::size_t> duplicate(const std::vector<TensorInfo>& tensors) const;

 private:
  struct Entry {
    std::size_t hash;
    std::size_t index;
  };

  std::vector<Entry> entries_{};  // by hash, then by name
};

}  // namespace accelerant::format
