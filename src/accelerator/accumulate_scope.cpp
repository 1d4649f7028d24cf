#include "accelerant/accelerator/accumulate_scope.h"

#include <exception>

#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/optimizer_state.h"

namespace accelerant {

AccumulateScope::AccumulateScope(std::shared_ptr<detail::Core> core,
                                 std::vector<const detail::ModelState*> models)
    : core_(std::move(core)),
      window_(core_->accumulation.window_of(std::move(models))),
      exceptions_at_entry_(std::uncaught_exceptions()) {
  detail::begin_micro_step(*window_, core_->window_rules(), core_->loader_progress());
  core_->accumulation.enter(window_);
  for (const auto& optimizer : core_->optimizers) {
    if (optimizer->is_concerned_by(window_->models)) optimizer->join(window_);
  }
}

AccumulateScope::~AccumulateScope() {
  const bool failed = std::uncaught_exceptions() > exceptions_at_entry_;
  detail::end_micro_step(*window_, failed);
  core_->accumulation.leave(window_);
  try {
    core_->update_scaler_if_due();
  } catch (const std::exception& error) {
    // The next backward tries again, where an exception can be reported.
    log(LogLevel::warning, std::string("updating the loss scale failed: ") + error.what());
  }
}

bool AccumulateScope::sync_gradients() const { return window_->complete; }

int64_t AccumulateScope::micro_step() const { return window_->micro_steps; }

}  // namespace accelerant
