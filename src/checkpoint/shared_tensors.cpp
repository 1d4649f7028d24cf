#include "checkpoint/shared_tensors.h"

#include <algorithm>
#include <tuple>

namespace accelerant::checkpoint {
namespace {

using View = std::tuple<const void*, c10::ScalarType, std::vector<int64_t>, std::vector<int64_t>,
                        bool, bool>;

View view_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
          tensor.strides().vec(),
          // The same memory, but different numbers.
          tensor.is_conj(), tensor.is_neg()};
}

}  // namespace

std::vector<std::vector<std::string>> names_of_each(const StateDict& state) {
  std::vector<std::vector<std::string>> groups;
  std::map<View, std::size_t> known;
  for (const auto& item : state) {
    const at::Tensor& tensor = item.value();
    const bool has_memory = tensor.numel() > 0 && !tensor.is_meta();
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
