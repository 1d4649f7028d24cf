// When the loss scale is updated: once for each iteration, after all the optimizers that were
// unscaled or stepped in it.
//
// Nobody says which optimizer is the last of an iteration. So the update is made when the scope of
// accumulate() closes or, outside of scopes, when the next backward or captured step begins. It
// waits while a window gathers: gradients of two scales do not add up.
#pragma once

namespace accelerant::detail {

struct Core;

class ScalerUpdates {
 public:
  explicit ScalerUpdates(Core& core) : core_(core) {}

  // An optimizer was unscaled or stepped.
  void note_checks() { has_checks_ = true; }

  // Whether one was since the last update.
  bool has_checks() const { return has_checks_; }
  void set_has_checks(bool has_checks) { has_checks_ = has_checks; }

  // Whether the scaler waits for its update.
  bool is_pending() const;

  // Ends the scaler's iteration if it is pending, no window is still gathering, and no unscaled
  // gradients wait for their step.
  void update_if_due();

  // Ends it at once. Gradients that were made with the scale before are brought to the new one.
  void update();

  // The same at a checkpoint, which counts the batch in hand as done: it does not wait for the end
  // of a scope, nor for windows that are half complete.
  void settle();

 private:
  void begin_iteration();

  Core& core_;
  bool has_checks_ = false;
};

}  // namespace accelerant::detail
