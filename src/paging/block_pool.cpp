#include "paging/block_pool.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace accelerant::paging {

at::Tensor BlockPool::take(std::size_t bytes) {
  at::Tensor block;
  if (const auto found = free_.find(bytes); found != free_.end()) {
    block = std::move(found->second);
    free_.erase(found);
    free_bytes_ -= bytes;
  } else {
    const uint64_t wanted = used_bytes_ + bytes;
    shrink_to(limit_ > wanted ? limit_ - wanted : 0);
    block = at::empty({static_cast<int64_t>(bytes)},
                      at::TensorOptions().dtype(at::kByte).device(device_));
  }
  used_bytes_ += bytes;
  return block;
}

void BlockPool::give_back(at::Tensor block) {
  const std::size_t bytes = block.nbytes();
  used_bytes_ -= bytes;
  free_.emplace(bytes, std::move(block));
  free_bytes_ += bytes;
  shrink_to(limit_ > used_bytes_ ? limit_ - used_bytes_ : 0);
}

void BlockPool::shrink_to(uint64_t free_bytes) {
  while (free_bytes_ > free_bytes) {
    const auto largest = std::prev(free_.end());
    free_bytes_ -= largest->first;
    free_.erase(largest);
  }
}

}  // namespace accelerant::paging
