// Connects captured steps with everything that they use.
//
// While a step runs that is or will be captured, windows, backward, optimizers and schedules report
// here every change that they make to the host's state, so that replays can repeat it. At other
// times nothing is recorded.
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
  // Runs the action now and in every replay.
  template <class Action>
  void replayable(const Action& action) const {
    action();
    if (is_recording()) in_replays(action);
  }

  // Runs the action in every replay, but not now.
  void in_replays(std::function<void()> action) const;

  // Further events for the recorder: see StepRecorder.
  void note_window(const std::shared_ptr<Window>& window) const;
  void note_step(OptimizerState& optimizer, const StepResult& result) const;
  void note_schedule(const SchedulerState& schedule, std::function<void()> action) const;

  // The step does something that a graph cannot contain.
  void refuse(const char* reason) const;

  // Whether a step runs that is or will be captured; and whether it is being captured now, so that
  // the device does nothing yet.
  bool is_recording() const { return recorder_ != nullptr; }
  bool is_capturing() const;

  // Options of the recorded step: see StepRecorder::Options.
  bool keeps_gradients() const;
  bool needs_steps_on_device() const;

  // Creates the graph backend of captured steps.
  MakeBackend make_backend = cuda_graphs();

 private:
  friend class RecorderScope;

  StepRecorder* recorder_ = nullptr;
};

}  // namespace accelerant::detail
