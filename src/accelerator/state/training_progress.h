// The position of a training in its program: which loop over epochs it is in, which epoch, and
// which loops over loaders have ended in that epoch. So a restarted program finds its place without
// code of its own.
//
// Two numbers are saved: which call of epochs(), and which epoch of it is next. The loader saves
// its own position in the epoch. The program runs a resumed epoch from its beginning, so loops that
// were finished must do nothing: a loader that was trained with earlier in the epoch, or that had
// delivered its last batch, gives no batches in its next loop (LoaderState::skip_loop).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace accelerant::data {
class LoaderState;
}

namespace accelerant::detail {

class TrainingProgress {
 public:
  // Accelerator::epochs() was called. Returns the first epoch to run: `count` if the resumed
  // training had already finished the loop.
  int64_t begin_epochs(int64_t count);

  // Whether the resumed training had finished the loop that epochs() was called for last, and no
  // later one had begun.
  bool has_resumed_at_end() const { return resume_at_ && resume_at_->range == ranges_ - 1; }

  void begin_epoch(int64_t epoch);
  void end_epochs();

  void note_backward() { has_trained_ = true; }

  // A loop over a prepared loader begins. `backwards`: number of backwards so far.
  void begin_loop(const data::LoaderState& loader, int64_t backwards);
  void end_loop(const data::LoaderState& loader, int64_t backwards);

  // The epoch that a resumed training continues with. Inside a loop this is the current epoch;
  // outside loops it is the next one if a backward has run in the current one.
  int64_t epoch_to_resume() const;

  // Whether a resumed training would continue inside the current epoch.
  bool is_inside_epoch() const { return !running_.empty() || !has_trained_; }

  // Whether a loop that trained with the loader has ended in this epoch: a training resumed in this
  // epoch must not run it again.
  bool was_trained_with(const data::LoaderState& loader) const;

  // How many loops began over a loader that an earlier loop had trained with. Loops inside other
  // loops do not count.
  int64_t repeated_loops() const { return repeated_loops_; }

  // Whether a backward has run in the current loop over this loader.
  bool is_training_with(const data::LoaderState& loader, int64_t backwards) const;

  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state);

 private:
  struct Running {
    const data::LoaderState* loader = nullptr;
    int64_t backwards_at_begin = 0;
  };

  // A position in the program: which call of epochs(), and which epoch of it.
  struct Place {
    int64_t range = 0;
    int64_t epoch = 0;
  };

  Place place_to_resume() const;

  int64_t ranges_ = 0;      // calls of epochs() so far
  bool in_epochs_ = false;  // the last one is still running
  int64_t epoch_ = 0;
  bool has_trained_ = false;    // in this epoch
  int64_t repeated_loops_ = 0;  // in this process
  std::vector<const data::LoaderState*> ever_trained_with_;
  std::vector<const data::LoaderState*> trained_with_;  // in this epoch
  std::vector<Running> running_;                        // innermost last
  std::optional<Place> resume_at_;
};

}  // namespace accelerant::detail
