// How steps that are captured, and everything that they consist of, know of each other.
//
// While a step runs that is or will be captured, windows, backward, optimizers and schedules tell
// here of every change they make to the state of the host, so that replays can make it again. At
// other times nobody listens, and nothing is noted.
#pragma once

#include <functional>
#include <memory>

#include "accelerator/capture/graph_backend.h"

namespace accelerant {
class StepResult;
}

namespace accelerant::detail {

class OptimizerState;
class SchedulerState;
class StepRecorder;
struct Window;

class StepCapture {
 public:
  // Does the action, and has every replay do it again.
  template <class Action>
  void replayable(const Action& action) const {
    action();
    if (is_recording()) in_replays(action);
  }

  // Has every replay do what is not to be done now.
  void in_replays(std::function<void()> action) const;

  // What else a recorder wants to know: see StepRecorder.
  void note_window(const std::shared_ptr<Window>& window) const;
  void note_step(OptimizerState& optimizer, const StepResult& result) const;
  void note_schedule(const SchedulerState& schedule, std::function<void()> action) const;

  // The step does what a graph cannot hold.
  void refuse(const char* reason) const;

  // Whether a step runs that is or will be captured, and whether it is captured now, so that the
  // device does nothing yet.
  bool is_recording() const { return recorder_ != nullptr; }
  bool is_capturing() const;

  // Of the step that is recorded: see StepRecorder::Options.
  bool keeps_gradients() const;
  bool needs_steps_on_device() const;

  // Where captured steps get their graphs from.
  MakeBackend make_backend = cuda_graphs();

 private:
  friend class RecorderScope;

  StepRecorder* recorder_ = nullptr;
};

}  // namespace accelerant::detail
