// The range behind `for (auto epoch : accelerator.epochs(n))`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace accelerant {

class Epochs {
 public:
  class Iterator {
   public:
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(int64_t epoch) : epoch_(epoch) {}
    int64_t operator*() const { return epoch_; }
    Iterator& operator++() {
      ++epoch_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(epoch_++); }
    bool operator==(const Iterator&) const = default;

   private:
    int64_t epoch_ = 0;
  };

  // From `first` to `end` - 1; nothing if `first` is not below `end`.
  Epochs(int64_t first, int64_t end) : first_(first), end_(end < first ? first : end) {}

  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(end_); }

 private:
  int64_t first_;
  int64_t end_;
};

}  // namespace accelerant
