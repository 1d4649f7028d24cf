// Ends a training whose gradients are inf or nan, if AcceleratorOptions::nonfinite is stop.
//
// The device decides, and from then on updates nothing (amp/gradient_guard.h). The host learns of
// it without waiting, so it may already have queued later steps, which the device leaves out too.
// The host stays at most kLag updates behind: it waits only for one that has so many others behind
// it that the device does not run out of work.
//
// Processes have to throw in the same step, or those that go on would wait for the others. All of
// them find the same flags, but learn of them at different times. So with several processes an
// update counts only once it is kLag behind.
#pragma once

#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <optional>

#include "accelerant/amp/step_result.h"

namespace accelerant::detail {

struct Core;

class NonfiniteStop {
 public:
  explicit NonfiniteStop(Core& core) : core_(core) {}

  // An update of the scaler was queued on the device, not only captured.
  void note_update();

  // An optimizer has stepped. Throws Error if a step so far had gradients that are not finite; the
  // gradients are cleared then.
  void after_step(const StepResult& result);

  // The same after a replay in which an optimizer has stepped.
  void after_replay();

  // The same for all steps so far, at a place that all processes reach. Waits for the device.
  void settle();

 private:
  static constexpr int64_t kLag = 3;

  struct Update {
    int64_t number = 0;
    c10::Event done;
  };

  bool is_on() const;
  void look();
  void wait_for(int64_t update);
  [[noreturn]] void fail();

  Core& core_;
  std::array<std::optional<Update>, kLag + 1> queued_;  // the latest, by number modulo their count
};

}  // namespace accelerant::detail
