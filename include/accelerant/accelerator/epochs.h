// The range behind `for (auto epoch : accelerator.epochs(n))`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

namespace accelerant {

namespace detail {

class TrainingProgress;

// Tell the Accelerator, if it still exists, where the loop is.
void note_epoch(const std::weak_ptr<TrainingProgress>& progress, int64_t epoch);
void note_end_of_epochs(const std::weak_ptr<TrainingProgress>& progress);

}  // namespace detail

class Epochs {
 public:
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;

    int64_t operator*() const { return epoch_; }
    Iterator& operator++() {
      ++epoch_;
      note();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.epoch_ >= iterator.end_;
    }

   private:
    friend class Epochs;

    Iterator(int64_t epoch, int64_t end, std::weak_ptr<detail::TrainingProgress> progress)
        : epoch_(epoch), end_(end), progress_(std::move(progress)) {
      note();
    }

    void note() const {
      if (epoch_ < end_) {
        detail::note_epoch(progress_, epoch_);
      } else {
        detail::note_end_of_epochs(progress_);
      }
    }

    int64_t epoch_;
    int64_t end_;
    std::weak_ptr<detail::TrainingProgress> progress_;
  };

  // From `first` to `end` - 1; nothing if `first` is not below `end`.
  Epochs(int64_t first, int64_t end, std::weak_ptr<detail::TrainingProgress> progress = {})
      : first_(first), end_(end), progress_(std::move(progress)) {}

  Iterator begin() const { return Iterator(first_, end_, progress_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  int64_t first_;
  int64_t end_;
  std::weak_ptr<detail::TrainingProgress> progress_;
};

}  // namespace accelerant
