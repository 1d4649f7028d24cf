// Where a training stands in its program: which loop over epochs it is in, which epoch, and which
// loops over loaders have ended in that epoch. So a program that is started again finds its place
// without a line of its own.
//
// What is saved are two numbers: which call of epochs(), and which epoch of it is next. The
// position in an epoch is the loader's own. The program runs an epoch that goes on from its top, so
// loops that were done must do nothing: a loader that was trained with earlier in the epoch, or
// whose last batch was in hand, gives no batches in its next loop (LoaderState::skip_loop).
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
  // Accelerator::epochs() was called. The epoch to begin with: `count` if the loop had ended in the
  // training that was resumed.
  int64_t begin_epochs(int64_t count);

  void begin_epoch(int64_t epoch);
  void end_epochs();

  void note_backward() { has_trained_ = true; }

  // A loop over a prepared loader. `backwards`: that have run so far.
  void begin_loop(const data::LoaderState& loader, int64_t backwards);
  void end_loop(const data::LoaderState& loader, int64_t backwards);

  // The epoch that a resumed training goes on with. While a loop runs it is the present one;
  // outside of loops it is the next, if a backward has run in this one.
  int64_t epoch_to_resume() const;

  // Whether the present epoch would go on.
  bool is_inside_epoch() const { return !running_.empty() || !has_trained_; }

  // Whether the loader was trained with in this epoch, in a loop that has ended: a training that
  // goes on in this epoch must not do so again.
  bool was_trained_with(const data::LoaderState& loader) const;

  // Whether a backward has run in the loop over this loader, which goes on.
  bool is_training_with(const data::LoaderState& loader, int64_t backwards) const;

  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state);

 private:
  struct Running {
    const data::LoaderState* loader = nullptr;
    int64_t backwards_at_begin = 0;
  };

  // A place in the program: in which call of epochs(), and in which epoch of it.
  struct Place {
    int64_t range = 0;
    int64_t epoch = 0;
  };

  Place place_to_resume() const;

  int64_t ranges_ = 0;      // calls of epochs() so far
  bool in_epochs_ = false;  // the last of them goes on
  int64_t epoch_ = 0;
  bool has_trained_ = false;                            // in this epoch
  std::vector<const data::LoaderState*> trained_with_;  // in this epoch
  std::vector<Running> running_;                        // innermost last
  std::optional<Place> resume_at_;
};

}  // namespace accelerant::detail
