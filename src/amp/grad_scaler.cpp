#include "accelerant/amp/grad_scaler.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <unordered_set>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "amp/grad_scaler_impl.h"
#include "amp/scaled_step.h"
#include "compat/device.h"
#include "core/texts.h"

namespace accelerant {

using detail::CheckedOptimizer;
using kernels::Writing;
using torch::optim::Optimizer;
using Stage = CheckedOptimizer::Stage;

namespace {

// More than the updates that an Accelerator lets the device be behind.
constexpr std::size_t kRecentIterations = 16;

}  // namespace

detail::DeviceScaleState& GradScaler::Impl::require_state(const char* caller) {
  if (state) return *state;
  throw Error(c10::str("Attempted ", caller,
                       " but _scale is None.  This may indicate your script did not use "
                       "scaler.scale(loss or outputs) earlier in the iteration."));
}

CheckedOptimizer& GradScaler::Impl::state_of(const Optimizer& optimizer) {
  for (CheckedOptimizer& known : optimizer_states) {
    if (known.optimizer == &optimizer) return known;
  }
  return optimizer_states.emplace_back(CheckedOptimizer{.optimizer = &optimizer});
}

CheckedOptimizer& GradScaler::Impl::state_before_step(const Optimizer& optimizer) {
  CheckedOptimizer& optimizer_state = state_of(optimizer);
  if (optimizer_state.stage != Stage::stepped) return optimizer_state;
  throw Error("step() has already been called since the last update().",
              "call update() once per iteration, after all optimizers have stepped");
}

void GradScaler::Impl::refuse_shared_parameters(const Optimizer& optimizer) const {
  if (optimizer_states.size() < 2 || role.only_checks) return;
  std::unordered_set<const c10::TensorImpl*> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameters.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (const CheckedOptimizer& other : optimizer_states) {
    if (other.optimizer == &optimizer) continue;
    const auto shared = other.checks.find_any(parameters);
    if (!shared) continue;
    throw Error(
        ErrorDetails{.problem = "A gradient would be unscaled twice",
                     .expected = "every parameter in only one optimizer between two updates",
                     .got = name_of(*shared) + " in two optimizers",
                     .hint = "give it to one optimizer, or call update() between the steps"});
  }
}

void GradScaler::Impl::check(Optimizer& optimizer, CheckedOptimizer& optimizer_state,
                             Writing writing) {
  refuse_shared_parameters(optimizer);
  if (role.only_checks) writing = Writing::nothing;
  const bool writes = writing == Writing::unscaled_values;
  optimizer_state.checks.run(
      optimizer, gradient_factor(), writing,
      writes ? detail::Float16Gradients::refused : detail::Float16Gradients::allowed);
  reduce(optimizer_state);
}

// Gradients written after unscale_ (for example, clipped) may now be inf or nan, and must be
// caught.
void GradScaler::Impl::check_changed(Optimizer& optimizer, CheckedOptimizer& optimizer_state) {
  optimizer_state.require_flags();
  optimizer_state.checks.run_on_changed(optimizer, state->one());
  reduce(optimizer_state);
}

// Called once for each check, even without gradients here: other processes wait for it.
void GradScaler::Impl::reduce(CheckedOptimizer& optimizer_state) const {
  if (!reduction) return;
  const std::vector<at::Tensor> flags = optimizer_state.checks.flags();
  at::Tensor flag = at::zeros({}, state->scale().options());
  if (!flags.empty()) flag.copy_(detail::any_found(flags, state->device()));
  reduction(flag);
  optimizer_state.reduced_flag = flag.ne(0).to(at::kFloat);
}

StepResult GradScaler::Impl::step_on_device(Optimizer& optimizer, AmpOptimizer& amp_optimizer,
                                            CheckedOptimizer& optimizer_state) {
  at::Tensor grad_scale = amp_optimizer.extra_grad_scale;
  if (optimizer_state.stage == Stage::ready) {
    // The optimizer unscales while it steps; here the gradients are only checked.
    check(optimizer, optimizer_state, Writing::nothing);
    if (!role.only_checks) {
      grad_scale = grad_scale.defined() ? state->scale().mul(grad_scale) : state->scale();
    }
  }
  optimizer_state.require_flags();
  const AmpStepControls controls{.grad_scale = grad_scale,
                                 .found_inf = found_inf_of(optimizer_state)};
  at::Tensor loss = amp_optimizer.step(controls);
  amp_optimizer.extra_grad_scale.reset();
  return StepResult::undecided(controls.found_inf, std::move(loss));
}

void GradScaler::Impl::end_iteration() {
  ++iteration;
  std::vector<detail::GradientChecks> ended;
  for (CheckedOptimizer& each : optimizer_states) ended.push_back(std::move(each.checks));
  ended_checks = std::make_shared<const std::vector<detail::GradientChecks>>(std::move(ended));
  optimizer_states.clear();
}

void GradScaler::Impl::note_update(
    std::shared_ptr<const std::vector<detail::GradientChecks>> checks) {
  ++queued_updates;
  if (!role.stops) return;
  recent.push_back({.update = queued_updates, .checks = std::move(checks)});
  if (recent.size() > kRecentIterations) recent.pop_front();
}

void GradScaler::Impl::begin(c10::Device device) {
  if (!state) state = std::make_unique<detail::DeviceScaleState>(initial, device);
}

kernels::UpdateRule GradScaler::Impl::update_rule() const {
  kernels::UpdateRule rule = detail::update_rule(options);
  rule.stops = role.stops;
  return rule;
}

const at::Tensor& GradScaler::Impl::gradient_factor() const {
  return role.only_checks ? state->one() : state->inverse_scale();
}

at::Tensor GradScaler::Impl::found_inf_of(const CheckedOptimizer& optimizer_state) const {
  std::vector<at::Tensor> flags = optimizer_state.flags();
  if (role.stops) flags.push_back(state->stopped());
  return detail::any_found(flags, state->device());
}

GradScaler::GradScaler(const GradScalerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  if (!options.enabled) return;
  if (options.device == c10::DeviceType::CUDA && !compat::is_present(options.device)) {
    log(LogLevel::warning, "GradScaler is enabled, but CUDA is not available. Disabling.");
    impl_->options.enabled = false;
    return;
  }
  detail::validate(options);
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale_tensor(const at::Tensor& output) {
  if (!output.defined()) throw Error("outputs must be a Tensor or an iterable of Tensors");
  impl_->begin(output.device());
  if (impl_->role.only_checks) return output;
  const at::Tensor scale = detail::copy_to(impl_->state->scale(), output.device());
  return (output.scalar_type() == at::kHalf ? output.to(at::kFloat) : output).mul(scale);
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!is_enabled()) return;
  impl_->require_state("unscale_");
  CheckedOptimizer& optimizer_state = impl_->state_of(optimizer);
  switch (optimizer_state.stage) {
    case Stage::unscaled:
      throw Error("unscale_() has already been called on this optimizer since the last update().",
                  "call it once, when all gradients are complete, and update() at the end");
    case Stage::stepped:
      throw Error("unscale_() is being called after step().",
                  "call it before step(), or update() first to begin the next iteration");
    case Stage::ready:
      break;
  }
  impl_->check(optimizer, optimizer_state, Writing::unscaled_values);
  optimizer_state.stage = Stage::unscaled;
}

StepResult GradScaler::step(Optimizer& optimizer) {
  if (!is_enabled()) return StepResult::decided(/*skipped=*/false, optimizer.step());
  impl_->require_state("step");
  CheckedOptimizer& optimizer_state = impl_->state_before_step(optimizer);
  if (optimizer_state.stage == Stage::unscaled) impl_->check_changed(optimizer, optimizer_state);
  if (auto* amp_optimizer = dynamic_cast<AmpOptimizer*>(&optimizer)) {
    StepResult result = impl_->step_on_device(optimizer, *amp_optimizer, optimizer_state);
    optimizer_state.stage = Stage::stepped;
    return result;
  }
  if (optimizer_state.stage == Stage::ready) unscale_(optimizer);
  optimizer_state.require_flags();
  const bool found = impl_->found_inf_of(optimizer_state).item<float>() != 0.0F;
  at::Tensor loss;
  if (!found) loss = optimizer.step();
  optimizer_state.stage = Stage::stepped;
  return StepResult::decided(found, std::move(loss));
}

StepResult GradScaler::step(Optimizer& optimizer, const std::function<at::Tensor()>& closure) {
  if (is_enabled()) {
    throw Error("Closure use is not currently supported if GradScaler is enabled.",
                "run forward and backward before step(), or construct it with .enabled = false");
  }
  return StepResult::decided(/*skipped=*/false, optimizer.step(closure));
}

void GradScaler::update() {
  if (!is_enabled()) return;
  detail::DeviceScaleState& state = impl_->require_state("update");
  std::vector<at::Tensor> flags;
  for (const CheckedOptimizer& optimizer_state : impl_->optimizer_states) {
    for (at::Tensor& flag : optimizer_state.flags()) flags.push_back(std::move(flag));
  }
  if (flags.empty()) {
    throw Error("No inf checks were recorded prior to update.",
                "call step(optimizer) or unscale_(optimizer) first");
  }
  state.update(detail::any_found(flags, state.device()), impl_->update_rule());
  impl_->end_iteration();
  impl_->note_update(impl_->ended_checks);
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  detail::DeviceScaleState& state = impl_->require_state("update");
  state.set_scale(detail::validated_scale(new_scale, "new_scale"));
  impl_->end_iteration();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  impl_->require_state("update");
  if (new_scale.numel() != 1 || new_scale.requires_grad()) {
    throw Error(
        "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor "
        "with requires_grad=False.",
        c10::str("got ", counted(static_cast<uint64_t>(new_scale.numel()), "element"),
                 ", requires_grad ", new_scale.requires_grad() ? "true" : "false"));
  }
  update(new_scale.item<double>());
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return impl_->state ? impl_->state->read().scale : impl_->options.init_scale;
}

double GradScaler::get_growth_factor() const { return impl_->options.growth_factor; }
double GradScaler::get_backoff_factor() const { return impl_->options.backoff_factor; }
int64_t GradScaler::get_growth_interval() const { return impl_->options.growth_interval; }
bool GradScaler::is_enabled() const { return impl_->options.enabled; }

void GradScaler::set_growth_factor(double growth_factor) {
  impl_->options.growth_factor = detail::validated_growth_factor(growth_factor);
}

void GradScaler::set_backoff_factor(double backoff_factor) {
  impl_->options.backoff_factor = detail::validated_backoff_factor(backoff_factor);
}

void GradScaler::set_growth_interval(int64_t growth_interval) {
  impl_->options.growth_interval = detail::validated_growth_interval(growth_interval);
}

std::vector<at::Tensor> GradScaler::found_inf(const Optimizer& optimizer) const {
  for (const CheckedOptimizer& known : impl_->optimizer_states) {
    if (known.optimizer == &optimizer) return known.flags();
  }
  return {};
}

void GradScaler::set_found_inf_reduction(std::function<void(at::Tensor&)> reduction) {
  impl_->reduction = std::move(reduction);
}

StepResult detail::ScalerAccess::step(GradScaler& scaler, ScaledStep& scaled_step) {
  GradScaler::Impl& impl = *scaler.impl_;
  Optimizer& optimizer = scaled_step.optimizer();
  if (scaler.is_enabled()) {
    impl.require_state("step");
    impl.state_before_step(optimizer);
  }
  if (!scaled_step.is_possible()) return scaled_step.step_otherwise(scaler);
  if (!scaler.is_enabled()) {
    scaled_step.apply({}, {});
    return StepResult::decided(/*skipped=*/false);
  }
  CheckedOptimizer& optimizer_state = impl.state_of(optimizer);
  const GradientScale scale = gradient_scale(scaler, optimizer);
  at::Tensor found_inf;
  if (optimizer_state.stage == Stage::unscaled) {
    impl.check_changed(optimizer, optimizer_state);
    optimizer_state.require_flags();
    found_inf = impl.found_inf_of(optimizer_state);
  } else {
    impl.refuse_shared_parameters(optimizer);
    optimizer_state.checks.adopt(scaled_step.check(scale));  // knows of a stop
    impl.reduce(optimizer_state);
    optimizer_state.require_flags();
    found_inf = any_found(optimizer_state.flags(), impl.state->device());
  }
  scaled_step.apply(scale, found_inf);
  optimizer_state.stage = Stage::stepped;
  return StepResult::undecided(found_inf);
}

GradientScale detail::ScalerAccess::gradient_scale(const GradScaler& scaler,
                                                   const Optimizer& optimizer) {
  if (!scaler.is_enabled()) return {};
  const DeviceScaleState& state = scaler.impl_->require_state("unscale_");
  for (const CheckedOptimizer& known : scaler.impl_->optimizer_states) {
    if (known.optimizer == &optimizer && known.stage == Stage::unscaled) return {};
  }
  return {.inv_scale = scaler.impl_->gradient_factor(),
          .iteration = scaler.impl_->iteration,
          .stopped = scaler.impl_->role.stops ? state.stopped() : at::Tensor()};
}

void detail::ScalerAccess::discard_checks(GradScaler& scaler) {
  scaler.impl_->optimizer_states.clear();
  scaler.impl_->ended_checks.reset();
}

}  // namespace accelerant
