#include "accelerant/data/epoch_plan.h"

#include <utility>

namespace accelerant::data {

EpochPlan::EpochPlan(std::vector<int64_t> order, Sharding sharding)
    : order_(std::make_shared<const std::vector<int64_t>>(std::move(order))),
      sharding_(std::move(sharding)) {}

std::vector<int64_t> EpochPlan::indices(int64_t step) const {
  std::vector<int64_t> indices = sharding_.positions(step);
  for (int64_t& index : indices) index = (*order_)[static_cast<std::size_t>(index)];
  return indices;
}

}  // namespace accelerant::data
