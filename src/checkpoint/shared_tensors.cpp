#include "checkpoint/shared_tensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "paging/residency.h"

namespace accelerant::checkpoint {
namespace {

using View = std::tuple<const void*, int64_t, c10::ScalarType, std::vector<int64_t>,
                        std::vector<int64_t>, bool, bool>;

// Where a tensor's elements begin: an address, and a number of elements from there. The memory of a
// paged parameter may be absent, and has another address each time it comes.
std::pair<const void*, int64_t> place_of(const at::Tensor& tensor) {
  if (!paging::is_paged(tensor) && !tensor.is_meta()) return {tensor.const_data_ptr(), 0};
  return {tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
          tensor.storage_offset()};
}

View view_of(const at::Tensor& tensor) {
  const auto [memory, offset] = place_of(tensor);
  return {memory, offset, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
          // The same memory, but different numbers.
          tensor.is_conj(), tensor.is_neg()};
}

}  // namespace

std::vector<std::vector<std::string>> names_of_each(const StateDict& state) {
  std::vector<std::vector<std::string>> groups;
  std::map<View, std::size_t> known;
  for (const auto& item : state) {
    const at::Tensor& tensor = item.value();
    const bool has_memory = tensor.numel() > 0;
    const auto [entry, is_new] = has_memory ? known.try_emplace(view_of(tensor), groups.size())
                                            : std::pair(known.end(), true);
    if (is_new) {
      groups.push_back({item.key()});
    } else {
      groups[entry->second].push_back(item.key());
    }
  }
  return groups;
}

DistinctTensors distinct_tensors(const StateDict& state) {
  DistinctTensors result;
  for (const auto& item : state) result.kept.insert(item.key(), item.value());
  for (const auto& names : names_of_each(state)) {
    const std::string& kept = *std::ranges::min_element(names);
    for (const std::string& name : names) {
      if (name == kept) continue;
      result.aliases.emplace(name, kept);
      result.kept.erase(name);
    }
  }
  return result;
}

}  // namespace accelerant::checkpoint
