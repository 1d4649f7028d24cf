// Epochs, and the scopes that change what happens inside a training loop.
//
//   for (auto epoch : accelerator.epochs(10)) {            // Epochs
//     for (auto&& [data, target] : loader) {
//       auto window = accelerator.accumulate(model);       // AccumulateScope
//       accelerator.backward(loss_of(model(data), target));
//       optimizer.step();                                  // only if the window is complete
//       optimizer.zero_grad();
//     }
//   }
//
// The Accelerator creates all of them. A scope lasts until the end of its block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerant/amp/autocast.h"

namespace accelerant {

class Accelerator;

namespace detail {

struct Core;
class ModelState;
class OptimizerState;
class TrainingProgress;
struct Window;

// Tell the Accelerator, if it still exists, which epoch the loop has reached.
void note_epoch(const std::weak_ptr<TrainingProgress>& progress, int64_t epoch);
void note_end_of_epochs(const std::weak_ptr<TrainingProgress>& progress);

}  // namespace detail

// The range behind `for (auto epoch : accelerator.epochs(n))`.
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

  // From `first` to `end` - 1; empty if `first` >= `end`.
  Epochs(int64_t first, int64_t end, std::weak_ptr<detail::TrainingProgress> progress = {})
      : first_(first), end_(end), progress_(std::move(progress)) {}

  Iterator begin() const { return Iterator(first_, end_, progress_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  int64_t first_;
  int64_t end_;
  std::weak_ptr<detail::TrainingProgress> progress_;
};

// One micro-step of a window of accumulated gradients, from Accelerator::accumulate. Whether it
// completes the window is decided when the scope opens. Scopes do not nest.
//
// The gradients of a window are the mean over the micro-steps in which a backward ran. If no
// optimizer has stepped when the last micro-step ends (for example after `continue`), the next
// window adds to these gradients.
//
// If an exception leaves the scope before an optimizer has stepped, the micro-step does not count.
// The gradients of the window are dropped if this was its first micro-step with a backward, or if
// they were already clipped or unscaled. Otherwise they stay, mixed with what the failed backward
// may have added: continue with them, or call Accelerator::drop_gradients().
class [[nodiscard(
    "the window ends at once: write auto window = "
    "accelerator.accumulate(model);")]] AccumulateScope {
 public:
  ~AccumulateScope();
  AccumulateScope(const AccumulateScope&) = delete;
  AccumulateScope& operator=(const AccumulateScope&) = delete;

  // Whether this micro-step completes its window.
  bool sync_gradients() const;

  // Its position in the window, from 1.
  int64_t micro_step() const;

 private:
  friend class Accelerator;

  AccumulateScope(std::shared_ptr<detail::Core> core,
                  std::vector<const detail::ModelState*> models);

  static void enter(detail::Core & core, const std::shared_ptr<detail::Window>& window);
  static std::vector<std::shared_ptr<detail::OptimizerState>> concerned(
      const detail::Core& core, const detail::Window& window);
  void clean_up_failure();

  std::shared_ptr<detail::Core> core_;
  std::shared_ptr<detail::Window> window_;
  int exceptions_at_entry_;
};

// While this scope lives, forwards of the model do not prepare an exchange of gradients between
// processes: backward adds to the gradients of its own process only. The first synchronised forward
// and backward afterwards exchange the accumulated gradients. From Accelerator::no_sync. Scopes
// nest. Does nothing with one process.
class [[nodiscard]] NoSyncScope {
 public:
  ~NoSyncScope();
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  friend class Accelerator;

  explicit NoSyncScope(std::shared_ptr<detail::ModelState> model);

  std::shared_ptr<detail::ModelState> model_;
};

// Runs code outside a model's forward in the Accelerator's precision. From Accelerator::autocast.
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  friend class Accelerator;

  explicit AutocastScope(const std::optional<AutocastOptions>& options) {
    if (options) guard_.emplace(*options);
  }

  std::optional<AutocastGuard> guard_;  // empty without mixed precision
};

}  // namespace accelerant
