#include "accelerator/capture/host_state.h"

#include "amp/gradient_guard.h"
#include "dist/captured_exchange.h"

namespace accelerant::detail {

ExchangeState::ExchangeState(const Core& core) {
  for (const auto& model : core.models.all()) {
    if (model->parallel() == nullptr) continue;
    models_.push_back(
        {model, dist::buffers_are_due(*model->parallel()), model->has_local_forward()});
  }
}

void ExchangeState::restore(Core& core) const {
  for (const auto& [weak_model, buffers_are_due, has_local_forward] : models_) {
    const auto model = weak_model.lock();
    if (!model) continue;
    dist::set_buffers_due(*model->parallel(), buffers_are_due);
    model->set_local_forward(has_local_forward);
  }
  // The busy time of this process is measured from one backward to the next.
  core.last_backward.reset();
}

HostState::HostState(const Core& core)
    : latest_window_(core.accumulation.shared_latest()),
      exchanges_(core),
      scaler_has_checks_(core.scaler_updates.has_checks()),
      scaler_updates_(GuardAccess::queued_updates(core.scaler)),
      counts_(core.counts) {
  for (const auto& window : core.accumulation.windows()) windows_.emplace_back(window, *window);
  for (const auto& optimizer : core.optimizers.all()) {
    optimizers_.emplace_back(optimizer, optimizer->progress());
  }
}

void HostState::restore(Core& core) const {
  for (const auto& [window, state] : windows_) *window = state;
  core.accumulation.go_on_with(latest_window_);
  for (const auto& [optimizer, progress] : optimizers_) optimizer->restore(progress);
  exchanges_.restore(core);
  core.scaler_updates.set_has_checks(scaler_has_checks_);
  GuardAccess::take_back_updates(core.scaler, scaler_updates_);
  core.counts = counts_;
}

}  // namespace accelerant::detail
