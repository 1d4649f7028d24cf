#include "checkpoint/shared_tensors.h"

#include <tuple>

namespace accelerant::checkpoint {
namespace {

// What two tensors have in common if and only if they are the same piece of memory, seen in the same way.
using View = std::tuple<const void*, c10::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;

View view_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

}  // namespace

DistinctTensors distinct_tensors(const StateDict& state) {
  std::map<View, std::string> first;  // the alphabetically first name
  for (const auto& item : state) {
    if (item.value().numel() == 0) continue;  // no memory to share
    auto [entry, is_new] = first.try_emplace(view_of(item.value()), item.key());
    if (!is_new && item.key() < entry->second) entry->second = item.key();
  }
  DistinctTensors result;
  for (const auto& item : state) {
    const auto entry = item.value().numel() == 0 ? first.end() : first.find(view_of(item.value()));
    if (entry == first.end() || entry->second == item.key()) {
      result.kept.insert(item.key(), item.value());
    } else {
      result.aliases.emplace(item.key(), entry->second);
    }
  }
  return result;
}

}  // namespace accelerant::checkpoint
