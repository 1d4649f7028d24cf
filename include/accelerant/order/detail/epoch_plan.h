// What one process delivers in one epoch: the order of the samples combined with their sharding.
// The loader makes one for each loop; use Sharding if you only need numbers of batches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/order/detail/sharding.h"

namespace accelerant::data {

class EpochPlan {
 public:
  // `order`: the indices of the epoch. `may_repeat`: indices may occur more than once.
  EpochPlan(std::vector<int64_t> order, Sharding sharding, bool may_repeat = false);

  // The plan of another process for the same epoch. Shares the order.
  EpochPlan for_rank(int64_t rank) const;

  int64_t steps() const { return sharding_.steps(); }
  // The indices of a step, in batch order.
  std::vector<int64_t> indices(int64_t step) const;
  // For each of them, how often it occurred before in the epoch's order; empty if no index repeats.
  std::vector<int64_t> repeats(int64_t step) const;
  // As in Sharding.
  int64_t position_before(int64_t step) const { return sharding_.position_before(step); }
  int64_t samples(int64_t step) const { return sharding_.samples(step); }
  int64_t remainder() const { return sharding_.remainder(); }
  const Sharding& sharding() const { return sharding_; }

 private:
  // Shared, because plans are copied into worker threads.
  std::shared_ptr<const std::vector<int64_t>> order_;
  std::shared_ptr<const std::vector<int64_t>> repeats_;  // null: no index repeats
  Sharding sharding_;
};

}  // namespace accelerant::data
