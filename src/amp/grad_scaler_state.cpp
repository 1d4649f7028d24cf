// What a GradScaler reports: its state, for saving, and what was skipped and why.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "amp/grad_scaler_impl.h"
#include "core/texts.h"

namespace accelerant {

nlohmann::json GradScaler::state_dict() const {
  if (!is_enabled()) return nlohmann::json::object();
  if (!impl_->state) {
    return detail::to_json(impl_->options, impl_->initial, impl_->options.init_scale);
  }
  const kernels::ScaleState state = impl_->state->read();
  return detail::to_json(impl_->options, state, state.scale);
}

void GradScaler::load_state_dict(const nlohmann::json& saved) {
  if (!is_enabled()) return;
  GradScalerOptions options = impl_->options;
  kernels::ScaleState state = impl_->state ? impl_->state->read() : impl_->initial;
  detail::from_json(saved, options, state);
  impl_->options = options;
  impl_->initial = state;
  if (impl_->state) impl_->state->write(state);
  impl_->queued_updates = state.updates;
  impl_->recent.clear();
  ++impl_->iteration;
}

GradScalerStatus GradScaler::status() const {
  if (!is_enabled()) return {};
  const kernels::ScaleState state = impl_->state ? impl_->state->mirror() : impl_->initial;
  return {.scale = state.scale,
          .growth_tracker = state.growth_tracker,
          .updates = state.updates,
          .skips = state.skips,
          .last_skip = state.last_skip};
}

OverflowReport GradScaler::overflow_report() const {
  OverflowReport report;
  bool checked_since_update = false;
  for (const detail::CheckedOptimizer& optimizer_state : impl_->optimizer_states) {
    checked_since_update |= !optimizer_state.checks.empty();
    impl_->add_to(report, optimizer_state.checks);
  }
  if (!checked_since_update && impl_->ended_checks) {
    for (const detail::GradientChecks& checks : *impl_->ended_checks) {
      impl_->add_to(report, checks);
    }
  }
  return report;
}

void GradScaler::Impl::add_to(OverflowReport& report, const detail::GradientChecks& checks) const {
  for (const detail::NonFiniteParameter& found : checks.non_finite_parameters()) {
    const auto parameter = found.checked.parameter.lock();
    report.parameters.push_back(
        {.name = name_of(found.checked),
         .shape = parameter ? parameter->sizes().vec() : std::vector<int64_t>{},
         .inf_count = found.inf_count,
         .nan_count = found.nan_count});
  }
}

std::string OverflowReport::to_string() const {
  std::string text;
  for (const OverflowedParameter& parameter : parameters) {
    text += c10::str(parameter.name, " ", shape_text(parameter.shape), ": ", parameter.inf_count,
                     " inf, ", parameter.nan_count, " nan\n");
  }
  return text;
}

void GradScaler::name_parameter(const at::Tensor& parameter, const std::string& name) {
  if (impl_->names.size() >= impl_->names_before_pruning) {
    std::erase_if(impl_->names, [](const auto& entry) { return entry.second.first.expired(); });
    impl_->names_before_pruning = std::max(impl_->names_before_pruning, 2 * impl_->names.size());
  }
  impl_->names.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      std::pair{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), name});
}

std::string GradScaler::Impl::name_of(const detail::CheckedParameter& checked) const {
  const auto known = names.find(checked.parameter._unsafe_get_target());
  if (known != names.end() && !known->second.first.expired()) return known->second.second;
  return c10::str("group ", checked.group, " parameter ", checked.index);
}

}  // namespace accelerant
