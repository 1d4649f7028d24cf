#include "accelerant/order/detail/epoch_plan.h"

#include <unordered_map>
#include <utility>

namespace accelerant::data {
namespace {

// How often each index of the order occurred before; null if none repeats.
std::shared_ptr<const std::vector<int64_t>> count_repeats(const std::vector<int64_t>& order) {
  std::unordered_map<int64_t, int64_t> seen;
  seen.reserve(order.size());
  auto repeats = std::make_shared<std::vector<int64_t>>();
  repeats->reserve(order.size());
  for (const int64_t index : order) repeats->push_back(seen[index]++);
  return seen.size() < order.size() ? repeats : nullptr;
}

}  // namespace

EpochPlan::EpochPlan(std::vector<int64_t> order, Sharding sharding, bool may_repeat)
    : order_(std::make_shared<const std::vector<int64_t>>(std::move(order))),
      repeats_(may_repeat ? count_repeats(*order_) : nullptr),
      sharding_(std::move(sharding)) {}

EpochPlan EpochPlan::for_rank(int64_t rank) const {
  EpochPlan other = *this;
  other.sharding_ = sharding_.for_rank(rank);
  return other;
}

std::vector<int64_t> EpochPlan::indices(int64_t step) const {
  std::vector<int64_t> indices = sharding_.positions(step);
  for (int64_t& index : indices) index = (*order_)[static_cast<std::size_t>(index)];
  return indices;
}

std::vector<int64_t> EpochPlan::repeats(int64_t step) const {
  if (!repeats_) return {};
  std::vector<int64_t> repeats = sharding_.positions(step);
  for (int64_t& repeat : repeats) repeat = (*repeats_)[static_cast<std::size_t>(repeat)];
  return repeats;
}

}  // namespace accelerant::data
