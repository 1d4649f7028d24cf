#include "accelerant/optim/fused_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_set>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/optim/clip_grad.h"
#include "amp/gradient_checks.h"
#include "amp/scaled_step.h"
#include "amp/unscale.h"
#include "compat/paging_key.h"
#include "optim/early_update.h"
#include "optim/fused_step_replay.h"
#include "optim/state_watch.h"
#include "optim/step_plan.h"

namespace accelerant {
namespace {

using detail::ScalerAccess;
using optim::detail::StepPlan;

const float* pointer_to(const at::Tensor& value) {
  return value.defined() ? value.const_data_ptr<float>() : nullptr;
}

[[noreturn]] void refuse_between_update_and_step(const char* what) {
  throw Error(ErrorDetails{
      .problem = "The step that was begun during backward must come first",
      .expected = "step() right after backward()",
      .got = c10::str(what, " in between"),
      .hint = "some states are already updated, so load a checkpoint before going on without the "
              "step; set AcceleratorOptions::offload.update_in_backward to false"});
}

}  // namespace

class FusedStep::Impl final : public optim::detail::StateWatcher, public ScaledStep {
 public:
  Impl(torch::optim::Optimizer& optimizer, const FusedStepOptions& options)
      : StateWatcher(optimizer),
        optimizer_(optimizer),
        options_(options),
        plan_(optimizer, options) {}

  torch::optim::Optimizer& optimizer() const override { return optimizer_; }
  StepPlan& plan() { return plan_; }

  void before_state_is_read() override {
    if (plan_.has_early()) refuse_between_update_and_step("the optimizer's state is read");
    plan_.require_whole_step();
    plan_.sync();
  }
  void after_state_was_written() override { plan_.reload(); }
  std::optional<c10::Device> home_of_state() const override {
    return options_.on_host ? std::optional(c10::Device(c10::kCPU)) : std::nullopt;
  }

  bool is_possible() override;
  StepResult step_otherwise(GradScaler& scaler) override;
  Checked check(const GradientScale& scale) override;
  void apply(const GradientScale& scale, const at::Tensor& found_inf) override;

  // The norm of the current gradients, on the device.
  at::Tensor norm(const GradientScale& scale);

  void note_factor(double factor);
  void note_factor(const at::Tensor& factor);
  void note_limit(double max_norm);
  bool has_notes() const;
  void discard();
  void forget_outcome() { outcome_.reset(); }
  void refuse_closure() const;
  void update_early(const at::Tensor& parameter);

  // Applies the pending clipping and factors to the gradients, which must be unscaled already.
  // Returns their norm before clipping, if they are clipped.
  at::Tensor write_notes();

  // The same for the optimizer's own step, which descends even where this one would ascend.
  void write_for_own_step();

 private:
  std::vector<at::Tensor> all_parameters() const;
  static void multiply(const std::vector<at::Tensor>& parameters, double factor);
  bool is_checked(const GradientScale& scale) const;
  void find_outcome(const GradientScale& scale);
  kernels::StepFactors factors(const GradientScale& scale);
  void apply_in_parts(const kernels::StepFactors& factors, const kernels::StepLimit& limit,
                      const float* found_inf);
#if defined(ACCELERANT_WITH_CUDA)
  void* scratch();
#endif

  torch::optim::Optimizer& optimizer_;
  const FusedStepOptions options_;
  StepPlan plan_;
  bool has_logged_reason_ = false;

  // Pending for the next step.
  std::optional<double> max_norm_;
  double constant_ = 1.0;
  at::Tensor factor_;
  int64_t notes_ = 0;  // incremented with each change of the factors

  // The first pass: its kernels::StepOutcome, and what it was computed from.
  at::Tensor outcome_;
  struct Of {
    int64_t gradients = -1;
    int64_t notes = -1;
    int64_t iteration = -1;
    bool scaled = false;
    bool operator==(const Of&) const = default;
  };
  Of outcome_of_;
  Of now(const GradientScale& scale) const {
    const bool scaled = scale.inv_scale.defined();
    return {plan_.gradients_version(), notes_, scaled ? scale.iteration : 0, scaled};
  }

  at::Tensor scratch_;    // for the CUDA kernels
  at::Tensor inv_scale_;  // the scaler's, or a copy of it on the device of the gradients
};

bool FusedStep::Impl::is_possible() {
  if (plan_.prepare() != StepPlan::Readiness::impossible) return true;
  if (options_.on_host) {
    throw Error(ErrorDetails{
        .problem = "The step of an optimizer whose state is in host memory is not possible",
        .expected = "gradients and parameters that fused kernels can read",
        .got = plan_.reason(),
        .hint = "leave the state beside the parameters: without on_host, or without "
                "AcceleratorOptions::offload.optimizer"});
  }
  if (!has_logged_reason_) {
    log(LogLevel::warning,
        c10::str("FusedStep falls back to the optimizer's own step because of ", plan_.reason()));
    has_logged_reason_ = true;
  }
  return false;
}

#if defined(ACCELERANT_WITH_CUDA)
void* FusedStep::Impl::scratch() {
  if (!scratch_.defined() || scratch_.device() != plan_.device()) {
    scratch_ = at::zeros({kernels::cuda::kStepScratchBytes},
                         at::TensorOptions().dtype(at::kByte).device(plan_.device()));
  }
  return scratch_.mutable_data_ptr();
}
#endif

kernels::StepFactors FusedStep::Impl::factors(const GradientScale& scale) {
  inv_scale_.reset();
  if (scale.inv_scale.defined()) inv_scale_ = detail::copy_to(scale.inv_scale, plan_.device());
  if (factor_.defined()) factor_ = detail::copy_to(factor_, plan_.device());
  return {.inv_scale = pointer_to(inv_scale_),
          .factor = pointer_to(factor_),
          .constant = options_.maximize ? -constant_ : constant_};
}

bool FusedStep::Impl::is_checked(const GradientScale& scale) const {
  return outcome_.defined() && outcome_of_ == now(scale);
}

void FusedStep::Impl::find_outcome(const GradientScale& scale) {
  if (is_checked(scale)) return;
  // A new one each time: results and norms that the program holds must not change.
  outcome_ = at::empty({sizeof(kernels::StepOutcome) / sizeof(float)},
                       at::TensorOptions().dtype(at::kFloat).device(plan_.device()));
  auto* const outcome = static_cast<kernels::StepOutcome*>(outcome_.mutable_data_ptr());
  const at::Tensor stopped =
      scale.stopped.defined() ? detail::copy_to(scale.stopped, plan_.device()) : at::Tensor();
  if (plan_.device().is_cpu()) {
    kernels::cpu::check_gradients(plan_.tables(), plan_.costs(), factors(scale),
                                  pointer_to(stopped), outcome);
  } else {
#if defined(ACCELERANT_WITH_CUDA)
    const c10::OptionalDeviceGuard guard(plan_.device());
    kernels::cuda::check_gradients(plan_.tables(), plan_.blocks(), plan_.bundles(), factors(scale),
                                   pointer_to(stopped), outcome, scratch(),
                                   compat::current_cuda_stream(plan_.device()));
#endif
  }
  outcome_of_ = now(scale);
}

ScaledStep::Checked FusedStep::Impl::check(const GradientScale& scale) {
  if (plan_.tensors() == 0) return {};
  find_outcome(scale);
  return {.found_inf = outcome_.select(0, 0), .gradients = plan_.checked()};
}

at::Tensor FusedStep::Impl::norm(const GradientScale& scale) {
  if (plan_.tensors() == 0) return at::zeros({});
  find_outcome(scale);
  return outcome_.select(0, 1);
}

void FusedStep::Impl::apply(const GradientScale& scale, const at::Tensor& found_inf) {
  if (max_norm_) find_outcome(scale);
  const at::Tensor flag =
      found_inf.defined() ? detail::copy_to(found_inf, plan_.device()) : at::Tensor();
  kernels::StepLimit limit{};
  if (max_norm_) {
    limit = {.outcome = static_cast<const kernels::StepOutcome*>(outcome_.const_data_ptr()),
             .max_norm = *max_norm_};
  }
  if (plan_.has_images()) {
    apply_in_parts(factors(scale), limit, pointer_to(flag));
  } else if (plan_.device().is_cpu()) {
    kernels::cpu::apply_step(plan_.tables(), plan_.costs(), plan_.tensors(), factors(scale), limit,
                             pointer_to(flag));
  } else {
#if defined(ACCELERANT_WITH_CUDA)
    const c10::OptionalDeviceGuard guard(plan_.device());
    kernels::cuda::apply_step(plan_.tables(), plan_.segments(), factors(scale), limit,
                              pointer_to(flag), scratch(),
                              compat::current_cuda_stream(plan_.device()));
#endif
  }
  plan_.applied();
  discard();
}

// While the next part is computed, the last one is on its way.
void FusedStep::Impl::apply_in_parts(const kernels::StepFactors& factors,
                                     const kernels::StepLimit& limit, const float* found_inf) {
  plan_.check_early(!has_notes() && factors.inv_scale == nullptr && found_inf == nullptr);
  if (found_inf != nullptr && *found_inf != 0.0F) return;
  plan_.wait_until_sent();
  plan_.begin_parts();
  const kernels::StepTables tables = plan_.tables();
  for (const optim::detail::StepPart& part : plan_.parts()) {
    if (!plan_.has_early()) {
      kernels::cpu::update_blocks(tables, plan_.costs(), part.blocks, factors, limit);
    }
    for (int32_t i = part.first_tensor; plan_.has_early() && i < part.end_tensor; ++i) {
      if (plan_.is_early(i)) continue;
      kernels::cpu::update_blocks(tables, plan_.costs(), plan_.blocks_of(i), factors, limit);
    }
    plan_.send(part);
  }
  plan_.forget_early();
  kernels::cpu::count_updates(tables, 0, plan_.tensors());
  plan_.end_parts();
}

void FusedStep::Impl::refuse_closure() const {
  if (!options_.on_host) return;
  throw Error(ErrorDetails{
      .problem = "A closure cannot be used with an optimizer whose state is in host memory",
      .expected = "step() without a closure, or the state beside the parameters",
      .got = "on_host (AcceleratorOptions::offload.optimizer) and a closure"});
}

StepResult FusedStep::Impl::step_otherwise(GradScaler& scaler) {
  plan_.sync();
  if (has_notes() || options_.maximize) {
    if (ScalerAccess::gradient_scale(scaler, optimizer_).inv_scale.defined()) {
      scaler.unscale_(optimizer_);
    }
    write_for_own_step();
  }
  StepResult result = scaler.step(optimizer_);
  plan_.reload();
  return result;
}

void FusedStep::Impl::note_factor(double factor) {
  constant_ *= factor;
  ++notes_;
}

void FusedStep::Impl::note_factor(const at::Tensor& factor) {
  if (factor.numel() != 1 || factor.scalar_type() != at::kFloat) {
    throw Error(ErrorDetails{.problem = "Gradients cannot be multiplied by this tensor",
                             .expected = "one element of type Float",
                             .got = c10::str(factor.numel(), " of type ", factor.dtype().name())});
  }
  const at::NoGradGuard no_grad;
  factor_ = factor_.defined() ? factor_.mul(factor.to(factor_.device())) : factor;
  ++notes_;
}

void FusedStep::Impl::note_limit(double max_norm) {
  if (!(max_norm >= 0.0)) {
    throw Error(ErrorDetails{.problem = "max_norm is out of range",
                             .expected = "0 or more",
                             .got = c10::str(max_norm),
                             .hint = "a negative limit would reverse the gradients"});
  }
  max_norm_ = max_norm_ ? std::min(*max_norm_, max_norm) : max_norm;
}

void FusedStep::Impl::update_early(const at::Tensor& parameter) {
  plan_.update_early(
      parameter,
      {.inv_scale = nullptr, .factor = nullptr, .constant = options_.maximize ? -1.0 : 1.0});
}

void FusedStep::Impl::discard() {
  if (plan_.has_early()) refuse_between_update_and_step("gradients are dropped");
  max_norm_.reset();
  constant_ = 1.0;
  factor_.reset();
  outcome_.reset();
}

bool FusedStep::Impl::has_notes() const {
  return max_norm_ || constant_ != 1.0 || factor_.defined();
}

at::Tensor FusedStep::Impl::write_notes() {
  if (!has_notes()) return {};
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = all_parameters();
  multiply(parameters, constant_);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (factor_.defined() && gradient.defined()) gradient.mul_(factor_.to(gradient.device()));
  }
  at::Tensor norm;
  if (max_norm_) norm = accelerant::clip_grad_norm_(parameters, *max_norm_);
  discard();
  return norm;
}

void FusedStep::Impl::write_for_own_step() {
  write_notes();
  if (options_.maximize) multiply(all_parameters(), -1.0);
}

// Each parameter once, even if the optimizer holds it twice.
std::vector<at::Tensor> FusedStep::Impl::all_parameters() const {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
    }
  }
  return parameters;
}

void FusedStep::Impl::multiply(const std::vector<at::Tensor>& parameters, double factor) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.grad().mul_(factor);
  }
}

std::optional<std::string> FusedStep::why_not(const torch::optim::Optimizer& optimizer,
                                              const FusedStepOptions& given) {
  const auto* const kind = optim::detail::find_fused_kind(optimizer);
  if (kind == nullptr) {
    return c10::str(c10::demangle(typeid(optimizer).name()),
                    " is not one of torch::optim's SGD, Adam, AdamW, Adagrad and RMSprop, or Lion");
  }
  std::optional<c10::Device> device;
  for (const auto& group : optimizer.param_groups()) {
    auto& options = const_cast<torch::optim::OptimizerOptions&>(group.options());  // only read
    if (kind->fields(options).empty()) return "the options of a param group have another class";
    for (const at::Tensor& parameter : group.params()) {
      if (given.on_host) break;  // the step uses images of them
      if (compat::has_paging_key(parameter)) {
        return "its parameters come and go (cpu_offload, dispatch_model)";
      }
      if (device && *device != parameter.device()) return "its parameters are on several devices";
      device = parameter.device();
    }
  }
  if (device && !detail::has_kernels(*device)) {
    return c10::str("there are no kernels for the device ", *device);
  }
  return std::nullopt;
}

FusedStep::FusedStep(torch::optim::Optimizer& optimizer, const FusedStepOptions& options) {
  if (const auto reason = why_not(optimizer, options)) {
    throw Error(ErrorDetails{.problem = "FusedStep cannot step this optimizer",
                             .expected = "an optimizer for which FusedStep::why_not() is empty",
                             .got = *reason,
                             .hint = "call its own step()"});
  }
  impl_ = std::make_unique<Impl>(optimizer, options);
}

FusedStep::~FusedStep() = default;

torch::optim::Optimizer& FusedStep::optimizer() const { return impl_->optimizer(); }

StepResult FusedStep::step() {
  if (!can_step()) {
    sync();
    impl_->write_for_own_step();
    at::Tensor loss = optimizer().step();
    reload();
    return StepResult::decided(/*skipped=*/false, std::move(loss));
  }
  if (impl_->plan().tensors() == 0) {
    discard();
    return StepResult(StepResult::Kind::nothing_to_do);
  }
  impl_->apply({}, {});
  return StepResult::decided(/*skipped=*/false);
}

StepResult FusedStep::step(GradScaler& scaler) { return ScalerAccess::step(scaler, *impl_); }

StepResult FusedStep::step(const std::function<at::Tensor()>& closure) {
  impl_->refuse_closure();
  sync();
  discard();
  at::Tensor loss = optimizer().step(closure);
  discard();
  reload();
  return StepResult::decided(/*skipped=*/false, std::move(loss));
}

at::Tensor FusedStep::clip_grad_norm_(double max_norm) {
  impl_->note_limit(max_norm);
  return can_step() ? impl_->norm({}) : impl_->write_notes();
}

at::Tensor FusedStep::clip_grad_norm_(double max_norm, GradScaler& scaler) {
  const GradientScale scale = ScalerAccess::gradient_scale(scaler, optimizer());
  impl_->note_limit(max_norm);
  if (can_step()) return impl_->norm(scale);
  if (scale.inv_scale.defined()) scaler.unscale_(optimizer());
  return impl_->write_notes();
}

void FusedStep::multiply_gradients(double factor) { impl_->note_factor(factor); }
void FusedStep::multiply_gradients(const at::Tensor& factor) { impl_->note_factor(factor); }
bool FusedStep::can_step() { return impl_->is_possible(); }
void FusedStep::write_noted() { impl_->write_notes(); }
bool FusedStep::has_noted() const { return impl_->has_notes(); }
void FusedStep::note_gradients_changed() { impl_->forget_outcome(); }
void FusedStep::discard() { impl_->discard(); }
void FusedStep::sync() { impl_->plan().sync(); }
void FusedStep::reload() { impl_->plan().reload(); }

bool EarlyUpdate::begin() { return fused_step_.impl_->plan().begin_early(); }
void EarlyUpdate::update(const at::Tensor& parameter) {
  fused_step_.impl_->update_early(parameter);
}
void EarlyUpdate::send(const at::Tensor& parameter) {
  fused_step_.impl_->plan().send_early(parameter);
}
bool EarlyUpdate::has_begun() const { return fused_step_.impl_->plan().has_early(); }
void EarlyUpdate::require_step(const char* what) const {
  if (has_begun()) refuse_between_update_and_step(what);
}

void FusedStepReplay::prepare() { fused_step_.impl_->plan().prepare_replay(nullptr); }

void FusedStepReplay::prepare(const RateChoice& choice) {
  fused_step_.impl_->plan().prepare_replay(&choice);
}

void FusedStepReplay::note_replayed() { fused_step_.impl_->plan().note_replayed(); }
uint64_t FusedStepReplay::fingerprint() { return fused_step_.impl_->plan().fingerprint(); }
void FusedStepReplay::reserve_for_capture() { fused_step_.impl_->plan().reserve_for_capture(); }

std::vector<at::Tensor> FusedStepReplay::take_memory_of_graphs() {
  return fused_step_.impl_->plan().take_memory_of_graphs();
}

}  // namespace accelerant
