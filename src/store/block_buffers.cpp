#include "store/block_buffers.h"

#include <algorithm>
#include <utility>

namespace accelerant::checkpoint {

std::uint64_t BlockBuffers::new_file() {
  const std::lock_guard lock(mutex_);
  return files_++;
}

BlockBuffers::Buffer BlockBuffers::take(const Content& wanted, std::size_t size) {
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(spare_, wanted, &Buffer::content);
    if (found != spare_.end()) std::swap(*found, spare_.back());
    if (!spare_.empty()) {
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (buffer.memory.size() < size) buffer = {.memory = format::AlignedBuffer(size)};
  return buffer;
}

void BlockBuffers::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(buffer));
}

std::size_t BlockBuffers::spare() const {
  const std::lock_guard lock(mutex_);
  return spare_.size();
}

}  // namespace accelerant::checkpoint
