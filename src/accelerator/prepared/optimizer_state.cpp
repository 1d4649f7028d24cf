#include "accelerator/prepared/optimizer_state.h"

#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerator/capture/graphed_optimizer.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "accelerator/warnings/replaced_parameters.h"
#include "amp/gradient_guard.h"
#include "optim/early_update.h"

namespace accelerant::detail {
namespace {

bool contains_any(const std::unordered_set<const c10::TensorImpl*>& set,
                  const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return set.contains(tensor.unsafeGetTensorImpl());
  });
}

bool do_all_models_fit(const Core& core) {
  const auto& models = core.models.all();
  return !models.empty() &&
         std::ranges::none_of(models, [](const auto& model) { return model->exceeds_budget(); });
}

// The Accelerator's option allows fused steps but does not require them.
std::optional<bool> unless_forbidden(bool allowed) {
  return allowed ? std::nullopt : std::optional(false);
}

[[noreturn]] void refuse_closure_in_window(int64_t steps) {
  throw Error(ErrorDetails{
      .problem = "A closure cannot be used with gradient accumulation",
      .expected =
          "gradient_accumulation.steps = 1, since the closure computes the whole loss again",
      .got = c10::str("gradient_accumulation.steps = ", steps),
      .hint = "sum over the micro-batches inside the closure"});
}

// A closure, or the optimizer around it, changes the parameters before anybody sees the gradients.
[[noreturn]] void refuse_unguarded(const char* what) {
  throw Error(
      ErrorDetails{.problem = "A step that computes the loss again cannot look for inf and nan",
                   .expected = ".nonfinite = accelerant::Nonfinite::step",
                   .got = c10::str("skip or stop, with ", what),
                   .hint = "look at the loss inside the closure, or use another optimizer"});
}

// The scaler would refuse it, too, but speaks of its own update().
[[noreturn]] void refuse_second_step() {
  throw Error(ErrorDetails{
      .problem = "optimizer.step() was called twice without accelerator.backward() in between",
      .expected = "one backward for each step, since the loss scale is undone only once",
      .got = "a second step under fp16",
      .hint = "call accelerator.backward(loss) before each optimizer.step()"});
}

}  // namespace

OptimizerState::OptimizerState(const std::shared_ptr<Core>& core,
                               std::shared_ptr<torch::optim::Optimizer> optimizer,
                               const PrepareOptimizerOptions& options)
    : core_(core),
      optimizer_(std::move(optimizer)),
      step_(*optimizer_, options.fused ? options.fused : unless_forbidden(core->options.fused),
            {.master_weights = core->options.master_weights,
             .on_host = core->options.offload.optimizer}),
      loose_parameters_(options.loose_parameters),
      watch_(*optimizer_),
      gradient_watch_(*optimizer_) {
  const bool is_lbfgs = dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr;
  if (core->only_guards()) {
    if (is_lbfgs) refuse_unguarded("LBFGS");
    GuardAccess::begin(core->scaler, *core->options.device);
  } else if (core->scales_loss() && is_lbfgs) {
    throw Error(ErrorDetails{.problem = "LBFGS cannot be used with loss scaling",
                             .expected = "an optimizer that evaluates the loss once per step",
                             .got = "LBFGS under fp16",
                             .hint = "use bf16 or no mixed precision, or another optimizer"});
  }
  if (core->options.offload.parameters && !core->options.offload.optimizer &&
      !do_all_models_fit(*core)) {
    throw Error(ErrorDetails{
        .problem = "Parameters that are paged need an optimizer whose state is offloaded",
        .expected = "offload.optimizer = true with offload.parameters, or models that fit into "
                    "offload.budget and are prepared before",
        .got = "offload.optimizer = false",
        .hint = "the update is computed where the parameters are, in host memory"});
  }
  if (core->options.offload.optimizer) {
    host_gradients_ = std::make_unique<HostGradients>(*optimizer_);
    if (core->options.offload.update_in_backward) {
      updates_ = make_shared_for_process<UpdateThread>();
    }
    move_state_to(c10::kCPU, *optimizer_);
  } else if (options.device_placement.value_or(core->options.device_placement)) {
    move_state_to_parameters(*optimizer_);
  }
}

bool OptimizerState::is_at_boundary() const {
  return window_ ? window_->complete : require_core(core_)->outside_windows.syncs;
}

void OptimizerState::require_exchanged() const {
  for (const ModelState* model : ownership().models) {
    if (model->parallel() != nullptr) model->parallel()->require_reduced();
  }
}

StepResult OptimizerState::step(const std::function<at::Tensor()>& closure) {
  const auto core = require_core(core_);
  ++core->counts.step_calls;
  watch_.note_call();
  if (!is_at_boundary()) return StepResult(StepResult::Kind::accumulating);
  const auto span = core->timeline().span(Phase::step);
  if (!last_step_) check_parameters(*core);
  require_exchanged();
  core->settle_schedules();

  if (closure) {
    if (core->window_rules().steps > 1) refuse_closure_in_window(core->window_rules().steps);
    if (core->only_guards()) refuse_unguarded("a closure");
    core->capture.refuse("an optimizer steps with a closure");
    in_closure_ = true;
    try {
      last_step_ = step_.step(core->scaler, closure);
    } catch (...) {
      in_closure_ = false;
      throw;
    }
    in_closure_ = false;
  } else if (!has_gradients(*optimizer_)) {
    core->capture.refuse("an optimizer has no gradients to step with");
    watch_.note_empty_step(*core, backwards_at_last_step_);
    give_up_step();
    return *(last_step_ = StepResult(StepResult::Kind::nothing_to_do));
  } else {
    const bool has_new_gradients = core->counts.backwards > backwards_at_last_step_;
    if (core->scales_loss() && stage_ == Stage::done && !has_new_gradients) {
      refuse_second_step();
    }
    // A second step in the same iteration of the scaler: end the iteration of the first step here.
    const bool repeats = stage_ == Stage::done;
    if (core->scaler.is_enabled() && repeats) {
      stage_ = Stage::ready;
      core->scaler_updates.update();
    }
    watch_before_step(*core);
    fetch_gradients();
    correct_gradients();
    GraphedOptimizer(*this).refuse_step_on_host();
    last_step_ = step_.step(core->scaler);
  }
  core->capture.note_step(*this, *last_step_);
  core->loss_watch.look_in_replays(*core);
  note_stepped(*last_step_);
  // An autocast scope around several iterations may hold cached copies of the weights, which are
  // now outdated.
  at::autocast::clear_cache();
  core->nonfinite_stop.after_step(*last_step_);
  return *last_step_;
}

void OptimizerState::note_stepped(StepResult result) {
  const auto core = require_core(core_);
  last_step_ = std::move(result);
  stage_ = Stage::done;
  ++core->counts.updates;
  core->scaler_updates.note_checks();
  used_gradients_ = fingerprint_of_gradients(*optimizer_);
  backwards_at_last_step_ = core->counts.backwards;
  if (std::exchange(backwards_at_boundary_, 0) == 1) gradients_come_back_ = false;
  if (window_) window_->stepped = window_->gathered.used = true;
  watch_.after_step();
  core->skip_watch.look(*core);
}

void OptimizerState::note_backward() {
  // The module may have cleared them, and later ones may have the same addresses.
  if (used_gradients_ != 0 && !has_used_gradients()) used_gradients_ = 0;
  step_.note_gradients_changed();
}

void OptimizerState::begin_backward() {
  if (!host_gradients_) return;
  if (updates_) EarlyUpdate(*step_.fused_so_far()).require_step("another backward runs");
  take_gradients_back();
  const auto& own = ownership().models;
  const bool are_exchanged = std::ranges::any_of(
      own, [](const ModelState* model) { return model->parallel() != nullptr; });
  if (!is_at_boundary()) return;
  ++backwards_at_boundary_;
  if (!are_exchanged && !gradients_come_back_) host_gradients_->begin_leaving();
}

// Not if the gradients still need a factor, since it comes after the backward. And not in the
// window of other models, even if its backward reaches these parameters: no step follows.
void OptimizerState::begin_updates(const Window* window) {
  if (!updates_ || !host_gradients_->is_leaving()) return;
  if (window != nullptr && !is_concerned_by(*window)) return;
  if (window_) {
    Gathered gathered = window_->gathered;
    if (gathered.form != Gathered::Form::mean || correction_of(gathered, {}).is_needed()) return;
  }
  require_core(core_)->settle_schedules();
  FusedStep* const fused = step_.fused_so_far();
  if (fused == nullptr || !EarlyUpdate(*fused).begin()) return;
  updates_->begin([fused](const at::Tensor& parameter) { EarlyUpdate(*fused).update(parameter); });
  host_gradients_->hand_to(updates_.get());
}

void OptimizerState::end_backward() {
  std::exception_ptr failure;
  try {
    if (host_gradients_) host_gradients_->end_leaving();
  } catch (...) {
    failure = std::current_exception();
  }
  if (updates_) {
    FusedStep* const fused = step_.fused_so_far();
    updates_->finish([fused](const at::Tensor& parameter) { EarlyUpdate(*fused).send(parameter); });
  }
  if (failure) std::rethrow_exception(failure);
}

void OptimizerState::refuse_with_early_updates(const char* what) const {
  if (!updates_) return;
  throw Error(ErrorDetails{
      .problem = c10::str(what, " needs all gradients before the first update"),
      .expected = "offload.update_in_backward = false",
      .got = "true, so that updates begin while backward still computes gradients",
      .hint = "leave update_in_backward out: updates then begin after the last gradient"});
}

void OptimizerState::fetch_gradients() {
  if (!host_gradients_) return;
  const bool were_used = has_used_gradients();
  const bool were_cleared = has_cleared_gradients();
  if (host_gradients_->fetch_all()) note_moved_gradients(were_used, were_cleared);
}

void OptimizerState::take_gradients_back() {
  const bool were_used = has_used_gradients();
  const bool were_cleared = has_cleared_gradients();
  if (!host_gradients_->take_back_all()) return;
  // Another backward of the same step: from now on they wait for the step on the device, until a
  // step has had one backward only.
  if (!were_used && !were_cleared) gradients_come_back_ = true;
  note_moved_gradients(were_used, were_cleared);
}

void OptimizerState::note_moved_gradients(bool were_used, bool were_cleared) {
  const std::size_t gradients = fingerprint_of_gradients(*optimizer_);
  if (were_used) used_gradients_ = gradients;
  if (were_cleared) cleared_gradients_ = gradients;
  gradient_watch_.note_own_change();
}

void OptimizerState::watch_before_backward(const Window* window) {
  if (in_closure_) return;  // the optimizer changes parameters between its backwards
  watch_.before_backward(*require_core(core_), window_.get() == window ? window : nullptr);
  gradient_watch_.before_backward(has_used_gradients());
}

void OptimizerState::watch_after_backward(const Window* window) {
  const auto core = require_core(core_);
  watch_.after_backward(*core, window_.get() == window ? window : nullptr);
  gradient_watch_.after_backward(*core, has_used_gradients(), is_at_boundary());
}

void OptimizerState::watch_before_step(Core& core) {
  if (core.capture.is_capturing() || !core.warnings.are_open()) return;
  const bool steps_again = core.counts.backwards == backwards_at_last_step_ && has_used_gradients();
  if (steps_again) return;
  if (has_cleared_gradients()) {
    watch_.note_empty_step(core, backwards_at_last_step_);
  } else {
    watch_.before_step(core, ownership_.models, backwards_at_last_step_);
    gradient_watch_.before_step(core, /*are_scaled=*/stage_ == Stage::ready);
  }
}

bool OptimizerState::has_used_gradients() const {
  return used_gradients_ != 0 && used_gradients_ == fingerprint_of_gradients(*optimizer_);
}

bool OptimizerState::has_scaled_gradients() const {
  return stage_ == Stage::ready && has_gradients(*optimizer_) && !has_used_gradients() &&
         !has_cleared_gradients();
}

void OptimizerState::zero_grad(bool set_to_none) {
  const auto core = require_core(core_);
  const auto span = core->timeline().span(Phase::zero_grad);
  // Gradients of a window of several micro-steps stay until they are used or discarded with
  // drop_gradients().
  const bool may_clear =
      window_ ? has_used_gradients() || (window_->complete && window_->micro_steps <= 1)
              : is_at_boundary();
  if (!may_clear) return;
  clear_gradients(*optimizer_, set_to_none && !core->capture.keeps_gradients());
  core->capture.in_replays([this] { GraphedOptimizer(*this).note_gradients_written(); });
  core->capture.replayable([this] { note_cleared(); });
}

void OptimizerState::note_cleared() {
  give_up_step();
  gradient_watch_.start_over();
  used_gradients_ = 0;  // later gradients may have the same addresses
  cleared_gradients_ = fingerprint_of_gradients(*optimizer_);
  if (window_ && window_->complete) window_->gathered.used = true;
}

bool OptimizerState::has_cleared_gradients() const {
  return cleared_gradients_ != 0 && cleared_gradients_ == fingerprint_of_gradients(*optimizer_);
}

void OptimizerState::give_up_step() {
  step_.discard();
  if (awaits_step()) stage_ = Stage::done;
}

void OptimizerState::drop_gradients() {
  clear_gradients(*optimizer_);
  gradient_watch_.start_over();
  give_up_step();
}

void OptimizerState::leave_complete_window() {
  if (!has_gradients(*optimizer_)) give_up_step();
  if (!window_ || !window_->complete) return;
  if (has_gradients(*optimizer_) && !has_used_gradients()) correct_gradients();
  window_.reset();
}

bool OptimizerState::is_free_for(const Window& window) const {
  return !window_ || window_.get() == &window || !window_->is_gathering();
}

void OptimizerState::require_free_for(const Window& window) const {
  if (is_free_for(window)) return;
  throw Error(ErrorDetails{
      .problem = "An optimizer is in the middle of a window over other models",
      .expected = "accumulate() with the same models until the window is complete",
      .got = c10::str("a window that has ", window_->micro_steps,
                      window_->micro_steps == 1 ? " micro-step" : " micro-steps", " so far"),
      .hint = "name the same models in every accumulate(), or give the window up with "
              "drop_gradients()"});
}

void OptimizerState::finish_gradients() {
  const auto core = require_core(core_);
  if (!is_at_boundary() || !has_gradients(*optimizer_)) return;
  refuse_with_early_updates("Clipping or unscaling gradients");
  require_exchanged();
  fetch_gradients();
  correct_gradients();
  if (core->scaler.is_enabled() && stage_ == Stage::ready) {
    core->scaler.unscale_(*optimizer_);
    core->capture.replayable([this] { note_unscaled(); });
  }
  step_.write_noted();
}

void OptimizerState::note_unscaled() {
  stage_ = Stage::unscaled;
  require_core(core_)->scaler_updates.note_checks();
}

std::optional<at::Tensor> OptimizerState::clip_with_step(const ModelState& model, double max_norm) {
  const Ownership& own = ownership();
  const bool are_the_same =
      own.has_no_loose_tensors && own.models.size() == 1 && own.models.front() == &model &&
      std::none_of(own.others.begin(), own.others.end(),
                   [](const at::Tensor& other) { return other.grad().defined(); });
  if (!are_the_same || !is_at_boundary() || !has_gradients(*optimizer_)) return std::nullopt;
  // Write to the gradients themselves if they were unscaled, since the caller may inspect them, and
  // in a closure, where the optimizer itself uses them.
  if (awaits_step() || in_closure_) return std::nullopt;
  refuse_with_early_updates("Clipping gradients");
  require_exchanged();
  fetch_gradients();
  correct_gradients();
  auto norm = step_.clip_with_step(max_norm, require_core(core_)->scaler);
  if (norm && std::isfinite(max_norm) && has_used_gradients()) note_late_clipping();
  return norm;
}

void OptimizerState::correct_gradients() {
  if (!window_) return;
  const Correction correction =
      correction_of(window_->gathered, require_core(core_)->mean_over_processes());
  if (!correction.is_needed()) return;
  auto& corrected = window_->gathered.corrected;
  std::vector<at::Tensor> gradients;
  for_each_parameter(*optimizer_, [&](const at::Tensor& parameter) {
    const bool first_time =
        parameter.grad().defined() && corrected.insert(parameter.unsafeGetTensorImpl()).second;
    if (first_time) gradients.push_back(parameter.grad());
  });
  if (!gradients.empty()) multiply(gradients, correction);
  gradient_watch_.note_own_change();
  const StepCapture& capture = require_core(core_)->capture;
  if (!capture.is_capturing()) return;  // avoids a copy of the marks
  capture.in_replays([window = window_, marks = corrected] { window->gathered.corrected = marks; });
}

void OptimizerState::multiply_gradients(const Correction& correction) {
  std::vector<at::Tensor> gradients;
  for_each_parameter(*optimizer_, [&](const at::Tensor& parameter) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  });
  if (!gradients.empty()) multiply(gradients, correction);
  gradient_watch_.note_own_change();
}

const OptimizerState::Ownership& OptimizerState::ownership() const {
  const auto core = require_core(core_);
  const std::size_t fingerprint = fingerprint_of_parameters(*optimizer_);
  const int64_t version = core->models.version();
  if (ownership_.fingerprint == fingerprint && ownership_.models_version == version) {
    return ownership_;
  }
  ownership_ = {.fingerprint = fingerprint, .models_version = version};
  for_each_parameter(*optimizer_, [&](const at::Tensor& parameter) {
    ownership_.tensors.insert(parameter.unsafeGetTensorImpl());
  });
  std::size_t found = 0;
  for (const auto& model : core->models.all()) {
    if (!contains_any(ownership_.tensors, model->parameters())) continue;
    ownership_.models.push_back(model.get());
    for (const at::Tensor& parameter : model->parameters()) {
      if (ownership_.tensors.contains(parameter.unsafeGetTensorImpl())) {
        ++found;
      } else {
        ownership_.others.push_back(parameter);
      }
    }
  }
  ownership_.has_no_loose_tensors = found == ownership_.tensors.size();
  return ownership_;
}

bool OptimizerState::owns_any_of(const std::vector<at::Tensor>& tensors) const {
  return contains_any(ownership().tensors, tensors);
}

bool OptimizerState::owns(const at::Tensor& tensor) const {
  return ownership().tensors.contains(tensor.unsafeGetTensorImpl());
}

bool OptimizerState::is_concerned_by(const Window& window) const {
  const auto& own = ownership().models;
  if (own.empty()) return is_free_for(window);
  if (window.models.empty()) return true;
  return std::any_of(own.begin(), own.end(), [&](const ModelState* model) {
    return std::binary_search(window.models.begin(), window.models.end(), model);
  });
}

int64_t OptimizerState::samples_of_update() const {
  return window_ ? window_->gathered.samples : require_core(core_)->loaders.progress().samples;
}

void OptimizerState::check_parameters(Core& core) const {
  if (loose_parameters_) return;
  if (!ownership().models.empty()) return warn_if_replaced(core, *optimizer_);
  throw Error(
      ErrorDetails{.problem = "None of the optimizer's parameters belongs to a prepared model",
                   .expected = "the model to be prepared together with its optimizer",
                   .got = "an optimizer whose tensors are in no prepared model",
                   .hint = "also prepare the model; for tensors outside any model, use "
                           "prepare_optimizer(optimizer, {.loose_parameters = true})"});
}

OptimizerState::Progress OptimizerState::progress() const {
  return {.window = window_,
          .stage = stage_,
          .last_step = last_step_,
          .has_used_gradients = has_used_gradients(),
          .has_cleared_gradients = has_cleared_gradients(),
          .backwards_at_last_step = backwards_at_last_step_};
}

void OptimizerState::restore(const Progress& progress) {
  window_ = progress.window;
  stage_ = progress.stage;
  last_step_ = progress.last_step;
  // A capture does not write to gradients, but increments their versions.
  const std::size_t gradients = fingerprint_of_gradients(*optimizer_);
  used_gradients_ = progress.has_used_gradients ? gradients : 0;
  cleared_gradients_ = progress.has_cleared_gradients ? gradients : 0;
  backwards_at_last_step_ = progress.backwards_at_last_step;
  restart_watch();
}

}  // namespace accelerant::detail
