// What one process delivers in one epoch: the order of the samples joined with their sharding.
// The loader makes one for each loop; use Sharding for questions about numbers of batches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/order/detail/sharding.h"

namespace accelerant::data {

class EpochPlan {
 public:
  // `order`: the indices of the epoch. `may_repeat`: some may come more than once.
  EpochPlan(std::vector<int64_t> order, Sharding sharding, bool may_repeat = false);

  // What another process delivers in the same epoch. Shares the order.
  EpochPlan for_rank(int64_t rank) const;

  int64_t steps() const { return sharding_.steps(); }
  // The indices of a step, in the order in which they form the batch.
  std::vector<int64_t> indices(int64_t step) const;
  // For each of them, how often it came before in the epoch's order; empty if none ever did.
  std::vector<int64_t> repeats(int64_t step) const;
  // As in Sharding.
  int64_t position_before(int64_t step) const { return sharding_.position_before(step); }
  int64_t samples(int64_t step) const { return sharding_.samples(step); }
  int64_t remainder() const { return sharding_.remainder(); }
  const Sharding& sharding() const { return sharding_; }

 private:
  // Shared, because plans are copied into worker threads.
  std::shared_ptr<const std::vector<int64_t>> order_;
  std::shared_ptr<const std::vector<int64_t>> repeats_;  // none: no index comes twice
  Sharding sharding_;
};

}  // namespace accelerant::data
