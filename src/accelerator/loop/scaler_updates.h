// When the loss scale is updated: once per iteration, after all optimizers that were unscaled or
// stepped in it.
//
// It is not known which optimizer is the last of an iteration. So the scale is updated when the
// scope of accumulate() closes or, outside scopes, when the next backward or captured step begins.
// The update waits while a window accumulates, because gradients of different scales do not add up.
#pragma once

namespace accelerant::detail {

struct Core;

class ScalerUpdates {
 public:
  explicit ScalerUpdates(Core& core) : core_(core) {}

  // An optimizer was unscaled or stepped.
  void note_checks() { has_checks_ = true; }

  // Whether that has happened since the last update.
  bool has_checks() const { return has_checks_; }
  void set_has_checks(bool has_checks) { has_checks_ = has_checks; }

  // Whether the scaler waits for its update.
  bool is_pending() const;

  // Updates the scale if an update is pending, no window is still accumulating, and no unscaled
  // gradients wait for their step.
  void update_if_due();

  // Updates the scale now, and rescales gradients that were made with the old scale.
  void update();

  // The same for a checkpoint, which counts the current batch as done: does not wait for the end of
  // a scope or for incomplete windows.
  void settle();

 private:
  void begin_iteration();

  Core& core_;
  bool has_checks_ = false;
};

}  // namespace accelerant::detail
