// Memory that begins where a page does and is not cleared: the system copies from files into it at
// full speed, while copies between different alignments take half as long again.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace accelerant::format {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size)
      : bytes_(static_cast<std::byte*>(::operator new(size, kAlignment))), size_(size) {}

  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  static constexpr std::align_val_t kAlignment = std::align_val_t(4096);

  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };

  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_ = 0;
};

}  // namespace accelerant::format
