#include "paging/block_pool.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace accelerant::paging {

void BlockPool::set_limit(uint64_t limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

at::Tensor BlockPool::take(std::size_t bytes) {
  FreeBlocks surplus;  // freed, too, without the lock
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ += bytes;
    if (const auto found = free_.find(bytes); found != free_.end()) {
      at::Tensor block = std::move(found->second);
      free_.erase(found);
      free_bytes_ -= bytes;
      return block;
    }
    surplus = take_surplus(limit_ > used_bytes_ ? limit_ - used_bytes_ : 0);
  }
  surplus.clear();
  try {
    return at::empty({static_cast<int64_t>(bytes)},
                     at::TensorOptions().dtype(at::kByte).device(device_));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
    throw;
  }
}

void BlockPool::give_back(at::Tensor block) {
  FreeBlocks surplus;
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = block.nbytes();
  used_bytes_ -= bytes;
  free_.emplace(bytes, std::move(block));
  free_bytes_ += bytes;
  surplus = take_surplus(limit_ > used_bytes_ ? limit_ - used_bytes_ : 0);
}

void BlockPool::trim() {
  FreeBlocks surplus;
  const std::lock_guard lock(mutex_);
  surplus = take_surplus(0);
}

// The largest free blocks, until the others have at most so many bytes.
BlockPool::FreeBlocks BlockPool::take_surplus(uint64_t kept_bytes) {
  FreeBlocks surplus;
  while (free_bytes_ > kept_bytes) {
    const auto largest = std::prev(free_.end());
    free_bytes_ -= largest->first;
    surplus.insert(free_.extract(largest));
  }
  return surplus;
}

}  // namespace accelerant::paging
