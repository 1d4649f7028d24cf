#include "amp/gradient_guard.h"

#include "amp/grad_scaler_impl.h"
#include "amp/scaled_step.h"

namespace accelerant::detail {

void GuardAccess::set_role(GradScaler& scaler, const GuardRole& role) {
  ScalerAccess::impl(scaler).role = role;
}

const GuardRole& GuardAccess::role(const GradScaler& scaler) {
  return ScalerAccess::impl(scaler).role;
}

void GuardAccess::begin(GradScaler& scaler, c10::Device device) {
  if (scaler.is_enabled()) ScalerAccess::impl(scaler).begin(device);
}

int64_t GuardAccess::queued_updates(const GradScaler& scaler) {
  return ScalerAccess::impl(scaler).queued_updates;
}

void GuardAccess::take_back_updates(GradScaler& scaler, int64_t queued) {
  auto& impl = ScalerAccess::impl(scaler);
  impl.queued_updates = queued;
  std::erase_if(impl.recent, [&](const CheckedIteration& known) { return known.update > queued; });
}

CheckedIteration GuardAccess::last_iteration(const GradScaler& scaler) {
  const auto& impl = ScalerAccess::impl(scaler);
  return impl.recent.empty() ? CheckedIteration() : impl.recent.back();
}

void GuardAccess::note_replayed_update(GradScaler& scaler, const CheckedIteration& of_the_graph) {
  ScalerAccess::impl(scaler).note_update(of_the_graph.checks);
}

bool GuardAccess::would_stop(const GradScaler& scaler) {
  const auto& impl = ScalerAccess::impl(scaler);
  if (!impl.role.stops || !impl.state) return false;
  return kernels::is_beyond_scaling(impl.state->mirror(), impl.update_rule());
}

GuardAccess::Stop GuardAccess::stop_so_far(const GradScaler& scaler) {
  const auto& impl = ScalerAccess::impl(scaler);
  if (!impl.state) return {};
  const kernels::ScaleState state = impl.state->mirror();
  return {.update = state.stopped_at, .updates = state.updates};
}

GuardAccess::Stop GuardAccess::wait_for_stop(const GradScaler& scaler) {
  const auto& impl = ScalerAccess::impl(scaler);
  if (!impl.state) return {};
  const kernels::ScaleState state = impl.state->read();
  return {.update = state.stopped_at, .updates = state.updates};
}

OverflowReport GuardAccess::report(const GradScaler& scaler, int64_t update) {
  const auto& impl = ScalerAccess::impl(scaler);
  OverflowReport report;
  for (const CheckedIteration& iteration : impl.recent) {
    if (iteration.update != update || !iteration.checks) continue;
    for (const GradientChecks& checks : *iteration.checks) impl.add_to(report, checks);
  }
  return report;
}

void GuardAccess::go_on(GradScaler& scaler) {
  auto& impl = ScalerAccess::impl(scaler);
  if (!impl.state) return;
  kernels::ScaleState state = impl.state->read();
  if (state.stopped == 0.0F) return;
  state.stopped = 0.0F;
  state.stopped_at = 0;
  impl.state->write(state);
  ++impl.iteration;  // checks that reported an overflow because of the stop are outdated
}

}  // namespace accelerant::detail
