#include "accelerator/capture/recorder.h"

#include <algorithm>
#include <utility>

#include "accelerator/capture/graphed_optimizer.h"
#include "accelerator/capture/step_capture.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/scheduler_state.h"

namespace accelerant::detail {

void HostActions::run_before_launch() const {
  for (const auto& action : before_) action();
}

void HostActions::run_after_launch(const Flags& flags) const {
  for (const auto& action : after_) action(flags);
}

void StepRecorder::note(std::function<void()> action) {
  if (!is_capturing()) return;
  if (has_stepped_) {
    actions_.after_.push_back(
        [action = std::move(action)](const HostActions::Flags&) { action(); });
  } else {
    actions_.before_.push_back(std::move(action));
  }
}

void StepRecorder::note_schedule(const SchedulerState& schedule, std::function<void()> action) {
  if (has_stepped_) schedules_.push_back(&schedule);
  note(std::move(action));
}

void StepRecorder::note_window(const std::shared_ptr<Window>& window) {
  if (std::ranges::find(windows_, window) == windows_.end()) windows_.push_back(window);
}

void StepRecorder::note_step(OptimizerState& optimizer, const StepResult& result) {
  auto& optimizers = actions_.optimizers_;
  if (std::ranges::find(optimizers, &optimizer) == optimizers.end())
    optimizers.push_back(&optimizer);
  if (!is_capturing()) return;
  // Schedules act between replays.
  if (std::ranges::any_of(schedules_, [&](const SchedulerState* schedule) {
        return schedule->concerns(optimizer.optimizer());
      })) {
    refuse("an optimizer steps after its schedule");
  }
  has_stepped_ = true;
  const std::size_t index = actions_.flags_.size();
  actions_.flags_.push_back(result.device_flag());
  actions_.after_.push_back([&optimizer, index](const HostActions::Flags& flags) {
    GraphedOptimizer(optimizer).note_parameters_written();
    optimizer.note_stepped(flags[index].defined() ? StepResult::undecided(flags[index])
                                                  : StepResult::decided(/*skipped=*/false));
  });
}

void StepRecorder::refuse(const std::string& reason) {
  if (refusal_.empty()) refusal_ = reason;
}

RecorderScope::RecorderScope(StepCapture& capture, StepRecorder& recorder)
    : capture_(capture), before_(std::exchange(capture.recorder_, &recorder)) {}

RecorderScope::~RecorderScope() { capture_.recorder_ = before_; }

}  // namespace accelerant::detail
