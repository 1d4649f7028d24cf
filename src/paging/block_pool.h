// Blocks of memory for units. Fresh memory costs several times what a copy into used memory does,
// so blocks are used again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace accelerant::paging {

// Thread-safe: allocating, which may take long, holds no lock. On an accelerator all blocks belong
// to the side stream: take and give them back while it is current, so that one is only written again
// behind what is queued there.
class BlockPool {
 public:
  // Keeps free blocks as long as there are at most `limit` bytes of blocks, used ones included.
  BlockPool(c10::Device device, uint64_t limit) : device_(device), limit_(limit) {}

  void set_limit(uint64_t limit);

  // Bytes on the device. Allocates if there is no free block of that size.
  at::Tensor take(std::size_t bytes);

  // If it throws, the block is freed.
  void give_back(at::Tensor block);

  // Frees the free blocks.
  void trim();

 private:
  using FreeBlocks = std::multimap<std::size_t, at::Tensor>;  // by size

  FreeBlocks take_surplus(uint64_t kept_bytes);

  c10::Device device_;
  std::mutex mutex_;  // of what follows
  uint64_t limit_;
  uint64_t used_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  FreeBlocks free_;
};

}  // namespace accelerant::paging
