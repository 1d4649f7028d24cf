#include "format/name_index.h"

#include <algorithm>
#include <functional>

namespace accelerant::format {

NameIndex::NameIndex(const std::vector<TensorInfo>& tensors) {
  entries_.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    entries_.push_back({std::hash<std::string_view>{}(tensor.name), entries_.size()});
  }
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    return a.hash != b.hash ? a.hash < b.hash : tensors[a.index].name < tensors[b.index].name;
  });
}

std::optional<std::size_t> NameIndex::find(const std::vector<TensorInfo>& tensors,
                                           std::string_view name) const {
  const std::size_t hash = std::hash<std::string_view>{}(name);
  const auto found =
      std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.hash != hash ? entry.hash < hash : tensors[entry.index].name < name;
      });
  if (found == entries_.end() || tensors[found->index].name != name) return {};
  return found->index;
}

std::optional<std::size_t> NameIndex::duplicate(const std::vector<TensorInfo>& tensors) const {
  const auto found =
      std::adjacent_find(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
        return a.hash == b.hash && tensors[a.index].name == tensors[b.index].name;
      });
  if (found == entries_.end()) return {};
  return found->index;
}

}  // namespace accelerant::format
