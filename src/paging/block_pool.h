// Blocks of memory for units. Fresh memory costs several times what a copy into used memory does,
// so blocks are used again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace accelerant::paging {

// Not thread-safe. On an accelerator all blocks belong to the side stream: take and give them back
// while it is current, so that one is only written again behind what is queued there.
class BlockPool {
 public:
  // Keeps free blocks as long as there are at most `limit` bytes of blocks, used ones included.
  BlockPool(c10::Device device, uint64_t limit) : device_(device), limit_(limit) {}

  // Bytes on the device. Allocates if there is no free block of that size.
  at::Tensor take(std::size_t bytes);

  // If it throws, the block is freed.
  void give_back(at::Tensor block);

  // Frees the free blocks.
  void trim() { shrink_to(0); }

 private:
  void shrink_to(uint64_t free_bytes);

  c10::Device device_;
  uint64_t limit_;
  uint64_t used_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  std::multimap<std::size_t, at::Tensor> free_;  // by size
};

}  // namespace accelerant::paging
