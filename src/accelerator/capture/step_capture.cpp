#include "accelerator/capture/step_capture.h"

#include <utility>

#include "accelerator/capture/recorder.h"

namespace accelerant::detail {

void StepCapture::in_replays(std::function<void()> action) const {
  if (recorder_ != nullptr) recorder_->note(std::move(action));
}

void StepCapture::note_window(const std::shared_ptr<Window>& window) const {
  if (recorder_ != nullptr) recorder_->note_window(window);
}

void StepCapture::note_step(OptimizerState& optimizer, const StepResult& result) const {
  if (recorder_ != nullptr) recorder_->note_step(optimizer, result);
}

void StepCapture::note_schedule(const SchedulerState& schedule,
                                std::function<void()> action) const {
  if (recorder_ != nullptr) recorder_->note_schedule(schedule, std::move(action));
}

void StepCapture::refuse(const char* reason) const {
  if (recorder_ != nullptr) recorder_->refuse(reason);
}

bool StepCapture::is_capturing() const { return recorder_ != nullptr && recorder_->is_capturing(); }

bool StepCapture::keeps_gradients() const {
  return recorder_ != nullptr && recorder_->keeps_gradients();
}

bool StepCapture::needs_steps_on_device() const {
  return recorder_ != nullptr && recorder_->needs_steps_on_device();
}

}  // namespace accelerant::detail
