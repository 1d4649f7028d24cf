// A block of memory that grows while a file is read and then becomes a tensor without a copy.
#pragma once

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace accelerant::data {

// realloc() moves large blocks by remapping their pages, so growing neither copies nor needs both
// blocks at once, as std::vector does.
class GrowingArray {
 public:
  std::size_t size() const { return size_; }  // in bytes

  // Makes room for `bytes` more and returns where they begin. They count as part of the array.
  std::byte* append(std::size_t bytes) {
    if (bytes > capacity_ - size_) reserve(std::max(size_ + bytes, 2 * capacity_));
    std::byte* const place = memory_.get() + size_;
    size_ += bytes;
    return place;
  }

  // The array as a tensor, which takes the memory over.
  at::Tensor into_tensor(at::IntArrayRef sizes, at::ScalarType type) {
    reserve(std::max<std::size_t>(size_, 1));  // gives back what was reserved for more
    capacity_ = size_ = 0;
    return at::from_blob(memory_.release(), sizes, &std::free,
                         at::TensorOptions().dtype(type).device(at::kCPU));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  void reserve(std::size_t capacity) {
    void* const moved = std::realloc(memory_.get(), capacity);
    if (moved == nullptr) throw std::bad_alloc();
    (void)memory_.release();  // realloc() has freed it
    memory_.reset(static_cast<std::byte*>(moved));
    capacity_ = capacity;
  }

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace accelerant::data
