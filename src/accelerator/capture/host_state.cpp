#include "accelerator/capture/host_state.h"

namespace accelerant::detail {

HostState::HostState(const Core& core)
    : latest_window_(core.accumulation.shared_latest()),
      scaler_has_checks_(core.scaler_has_checks),
      backwards_(core.backwards),
      updates_(core.updates) {
  for (const auto& window : core.accumulation.windows()) windows_.emplace_back(window, *window);
  for (const auto& optimizer : core.optimizers.all()) {
    optimizers_.emplace_back(optimizer, optimizer->progress());
  }
}

void HostState::restore(Core& core) const {
  for (const auto& [window, state] : windows_) *window = state;
  core.accumulation.go_on_with(latest_window_);
  for (const auto& [optimizer, progress] : optimizers_) optimizer->restore(progress);
  core.scaler_has_checks = scaler_has_checks_;
  core.backwards = backwards_;
  core.updates = updates_;
}

}  // namespace accelerant::detail
