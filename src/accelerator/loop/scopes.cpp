// The scopes of loop.h, and how its loops over epochs report their position.
#include "accelerant/accelerator/loop.h"

#include <algorithm>
#include <exception>

#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"

namespace accelerant {

AccumulateScope::AccumulateScope(std::shared_ptr<detail::Core> core,
                                 std::vector<const detail::ModelState*> models)
    : core_(std::move(core)),
      window_(core_->accumulation.window_of(std::move(models))),
      exceptions_at_entry_(std::uncaught_exceptions()) {
  core_->capture.note_window(window_);
  core_->capture.replayable([&core = *core_, window = window_] { enter(core, window); });
}

void AccumulateScope::enter(detail::Core& core, const std::shared_ptr<detail::Window>& window) {
  core.checkpoints.finish_resume();
  const auto optimizers = concerned(core, *window);
  for (const auto& optimizer : optimizers) optimizer->require_free_for(*window);
  core.accumulation.enter(window, core.window_rules(), core.loaders.progress());
  for (const auto& optimizer : optimizers) {
    optimizer->join(window);
    // Gradients that were unscaled in the previous window but not used never will be.
    if (window->micro_steps == 1) optimizer->give_up_step();
  }
}

std::vector<std::shared_ptr<detail::OptimizerState>> AccumulateScope::concerned(
    const detail::Core& core, const detail::Window& window) {
  auto optimizers = core.optimizers.all();
  std::erase_if(optimizers,
                [&](const auto& optimizer) { return !optimizer->is_concerned_by(window); });
  return optimizers;
}

// Cleans up the gradients of a failed micro-step. Gradients that an optimizer has used are cleared,
// as the program would have done; the others are dropped or kept together with the rest of the
// window.
void AccumulateScope::clean_up_failure() {
  const auto optimizers = concerned(*core_, *window_);
  if (window_->stepped) {
    detail::end_micro_step(*window_);
    for (const auto& optimizer : optimizers) {
      if (optimizer->has_used_gradients()) optimizer->drop_gradients();
    }
    return;
  }
  const bool finished = std::any_of(optimizers.begin(), optimizers.end(),
                                    [](const auto& optimizer) { return optimizer->awaits_step(); });
  if (detail::take_back_micro_step(*window_, finished)) {
    for (const auto& optimizer : optimizers) optimizer->drop_gradients();
  }
}

AccumulateScope::~AccumulateScope() {
  if (!core_->process.is_this_one()) return;  // the update exchanges whether gradients overflowed
  try {
    if (std::uncaught_exceptions() > exceptions_at_entry_) {
      clean_up_failure();
    } else {
      core_->capture.replayable([window = window_] { detail::end_micro_step(*window); });
    }
    core_->scaler_updates.update_if_due();
  } catch (const std::exception& error) {
    // A destructor cannot throw. If the device has failed, the next call reports it too.
    log(LogLevel::warning, std::string("the end of accumulate() failed: ") + error.what());
  }
}

bool AccumulateScope::sync_gradients() const { return window_->complete; }

int64_t AccumulateScope::micro_step() const { return window_->micro_steps; }

NoSyncScope::NoSyncScope(std::shared_ptr<detail::ModelState> model) : model_(std::move(model)) {
  model_->enter_no_sync();
}

NoSyncScope::~NoSyncScope() { model_->leave_no_sync(); }

void detail::note_epoch(const std::weak_ptr<TrainingProgress>& progress, int64_t epoch) {
  if (const auto living = progress.lock()) living->begin_epoch(epoch);
}

void detail::note_end_of_epochs(const std::weak_ptr<TrainingProgress>& progress) {
  if (const auto living = progress.lock()) living->end_epochs();
}

}  // namespace accelerant
