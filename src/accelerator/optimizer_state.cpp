#include "accelerator/optimizer_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "accelerant/core/error.h"
#include "accelerator/capture/recorder.h"
#include "accelerator/gradient_fingerprint.h"
#include "accelerator/model_state.h"
#include "accelerator/optimizer_placement.h"

namespace accelerant::detail {
namespace {

// Calls f with every parameter, until it returns true.
template <class F>
bool any_parameter(torch::optim::Optimizer& optimizer, F&& f) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (f(parameter)) return true;
    }
  }
  return false;
}

// Another number when parameters come, go or are replaced.
std::size_t fingerprint_of_parameters(torch::optim::Optimizer& optimizer) {
  std::size_t fingerprint = 1;
  any_parameter(optimizer, [&](const at::Tensor& parameter) {
    mix(fingerprint, reinterpret_cast<std::uintptr_t>(parameter.unsafeGetTensorImpl()));
    return false;
  });
  return fingerprint;
}

bool has_gradients(torch::optim::Optimizer& optimizer) {
  return any_parameter(optimizer,
                       [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

// libtorch's own zero_grad detaches gradients even where it drops them, which those that are views of the
// buffers of an exchange do not allow.
void clear_gradients(torch::optim::Optimizer& optimizer, bool set_to_none = true) {
  any_parameter(optimizer, [&](at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) return false;
    if (set_to_none) {
      gradient.reset();
    } else {
      if (gradient.grad_fn()) gradient.detach_();
      gradient.requires_grad_(false);
      gradient.zero_();
    }
    return false;
  });
}

bool contains_any(const std::unordered_set<const c10::TensorImpl*>& set,
                  const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return set.contains(tensor.unsafeGetTensorImpl());
  });
}

// One call for all dense gradients of a device.
void multiply(const std::vector<at::Tensor>& gradients, const Correction& correction) {
  std::map<std::string, std::vector<at::Tensor>> dense;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.is_sparse()) {
      if (correction.device_factor.defined()) {
        gradient.mul_(correction.device_factor.to(gradient.device()));
      } else {
        gradient.mul_(correction.factor);
      }
    } else {
      dense[gradient.device().str()].push_back(gradient);
    }
  }
  for (const auto& [device, list] : dense) {
    if (correction.device_factor.defined()) {
      at::_foreach_mul_(list, correction.device_factor.to(list.front().device()));
    } else {
      at::_foreach_mul_(list, correction.factor);
    }
  }
}

// The Accelerator's option allows fused steps but does not insist on them.
std::optional<bool> unless_forbidden(bool allowed) {
  return allowed ? std::nullopt : std::optional(false);
}

[[noreturn]] void refuse_closure_in_window(int64_t steps) {
  throw Error(ErrorDetails{
      .problem = "A closure cannot be used with gradient accumulation",
      .expected = "gradient_accumulation.steps = 1, since the closure computes the whole loss anew",
      .got = c10::str("gradient_accumulation.steps = ", steps),
      .hint = "sum over the micro-batches inside the closure"});
}

}  // namespace

OptimizerState::OptimizerState(const std::shared_ptr<Core>& core,
                               std::shared_ptr<torch::optim::Optimizer> optimizer,
                               const PrepareOptimizerOptions& options)
    : core_(core),
      optimizer_(std::move(optimizer)),
      step_(*optimizer_, options.fused ? options.fused : unless_forbidden(core->options.fused)),
      loose_parameters_(options.loose_parameters) {
  if (core->scaler.is_enabled() &&
      dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr) {
    throw Error(ErrorDetails{.problem = "LBFGS cannot be used with loss scaling",
                             .expected = "an optimizer that evaluates the loss once in a step",
                             .got = "LBFGS under fp16",
                             .hint = "use bf16 or no mixed precision, or another optimizer"});
  }
  if (options.device_placement.value_or(core->options.device_placement)) {
    move_state_to_parameters(*optimizer_);
  }
}

bool OptimizerState::is_at_boundary() const {
  return window_ ? window_->complete : require_core(core_)->manual_sync;
}

void OptimizerState::require_exchanged() const {
  for (const ModelState* model : ownership().models) {
    if (model->parallel() != nullptr) model->parallel()->require_reduced();
  }
}

StepResult OptimizerState::step(const std::function<at::Tensor()>& closure) {
  const auto core = require_core(core_);
  if (!is_at_boundary()) return StepResult(StepResult::Kind::accumulating);
  const auto span = core->timeline().span(Phase::step);
  if (!last_step_) require_prepared_model();
  require_exchanged();
  core->settle_schedules();

  if (closure) {
    if (core->window_rules().steps > 1) refuse_closure_in_window(core->window_rules().steps);
    if (core->recorder != nullptr) core->recorder->refuse("an optimizer steps with a closure");
    in_closure_ = true;
    try {
      last_step_ = step_.step(core->scaler, closure);
    } catch (...) {
      in_closure_ = false;
      throw;
    }
    in_closure_ = false;
  } else if (!has_gradients(*optimizer_)) {
    if (core->recorder != nullptr)
      core->recorder->refuse("an optimizer has no gradients to step with");
    give_up_step();
    return *(last_step_ = StepResult(StepResult::Kind::nothing_to_do));
  } else {
    // A second step in one iteration of the scaler, with gradients of its own: the iteration of the
    // first one ends here.
    const bool repeats = stage_ == Stage::done && core->backwards > backwards_at_last_step_;
    if (core->scaler.is_enabled() && repeats) {
      stage_ = Stage::ready;
      core->update_scaler();
    }
    correct_gradients();
    refuse_capture_of_host_step();
    last_step_ = step_.step(core->scaler);
  }
  if (core->recorder != nullptr) core->recorder->note_step(*this, *last_step_);
  note_stepped(*last_step_);
  // In an autocast scope around several iterations, copies of the weights would be out of date now.
  at::autocast::clear_cache();
  return *last_step_;
}

void OptimizerState::note_stepped(StepResult result) {
  const auto core = require_core(core_);
  last_step_ = std::move(result);
  stage_ = Stage::done;
  ++core->updates;
  core->scaler_has_checks = true;
  used_gradients_ = fingerprint_of_gradients();
  backwards_at_last_step_ = core->backwards;
  if (window_) window_->stepped = window_->gathered.used = true;
}

bool OptimizerState::has_used_gradients() const {
  return used_gradients_ != 0 && used_gradients_ == fingerprint_of_gradients();
}

bool OptimizerState::has_scaled_gradients() const {
  return stage_ == Stage::ready && has_gradients(*optimizer_) && !has_used_gradients() &&
         !has_cleared_gradients();
}

void OptimizerState::zero_grad(bool set_to_none) {
  const auto span = require_core(core_)->timeline().span(Phase::zero_grad);
  // What a window of several micro-steps has gathered stays until it is used, or given up with
  // drop_gradients().
  const bool may_clear =
      window_ ? has_used_gradients() || (window_->complete && window_->micro_steps <= 1)
              : is_at_boundary();
  if (!may_clear) return;
  StepRecorder* const recorder = require_core(core_)->recorder;
  const bool keeps_them = recorder != nullptr && recorder->keeps_gradients();
  clear_gradients(*optimizer_, set_to_none && !keeps_them);
  if (recorder != nullptr) {
    recorder->note([this] {
      note_gradients_written();
      note_cleared();
    });
  }
  note_cleared();
}

void OptimizerState::note_cleared() {
  give_up_step();
  used_gradients_ = 0;  // later ones may lie at the same addresses
  cleared_gradients_ = fingerprint_of_gradients();
  if (window_ && window_->complete) window_->gathered.used = true;
}

bool OptimizerState::has_cleared_gradients() const {
  return cleared_gradients_ != 0 && cleared_gradients_ == fingerprint_of_gradients();
}

void OptimizerState::give_up_step() {
  step_.discard();
  if (awaits_step()) stage_ = Stage::done;
}

void OptimizerState::drop_gradients() {
  clear_gradients(*optimizer_);
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
      .got = c10::str("a window that holds ", window_->micro_steps, " micro-steps so far"),
      .hint = "name the same models in every accumulate(), or give the window up with "
              "drop_gradients()"});
}

void OptimizerState::finish_gradients() {
  const auto core = require_core(core_);
  if (!is_at_boundary() || !has_gradients(*optimizer_)) return;
  require_exchanged();
  correct_gradients();
  if (core->scaler.is_enabled() && stage_ == Stage::ready) {
    core->scaler.unscale_(*optimizer_);
    note_unscaled();
  }
  step_.write_noted();
}

void OptimizerState::note_unscaled() {
  const auto core = require_core(core_);
  if (core->recorder != nullptr) core->recorder->note([this] { note_unscaled(); });
  stage_ = Stage::unscaled;
  core->scaler_has_checks = true;
}

std::optional<at::Tensor> OptimizerState::clip_with_step(const ModelState& model, double max_norm) {
  const Ownership& own = ownership();
  const bool are_the_same =
      own.has_no_loose_tensors && own.models.size() == 1 && own.models.front() == &model &&
      std::none_of(own.others.begin(), own.others.end(),
                   [](const at::Tensor& other) { return other.grad().defined(); });
  if (!are_the_same || !is_at_boundary() || !has_gradients(*optimizer_)) return std::nullopt;
  // Gradients that somebody has had unscaled are his to look at, and those of a closure are used by the optimizer
  // itself.
  if (awaits_step() || in_closure_) return std::nullopt;
  require_exchanged();
  correct_gradients();
  return step_.clip_with_step(max_norm, require_core(core_)->scaler);
}

void OptimizerState::correct_gradients() {
  if (!window_) return;
  const Correction correction =
      correction_of(window_->gathered, require_core(core_)->mean_over_processes());
  if (!correction.is_needed()) return;
  auto& corrected = window_->gathered.corrected;
  std::vector<at::Tensor> gradients;
  any_parameter([&](const at::Tensor& parameter) {
    const bool first_time =
        parameter.grad().defined() && corrected.insert(parameter.unsafeGetTensorImpl()).second;
    if (first_time) gradients.push_back(parameter.grad());
    return false;
  });
  if (!gradients.empty()) multiply(gradients, correction);
  if (StepRecorder* const recorder = require_core(core_)->recorder) {
    recorder->note([window = window_, marks = corrected] { window->gathered.corrected = marks; });
  }
}

void OptimizerState::multiply_gradients(const Correction& correction) {
  std::vector<at::Tensor> gradients;
  any_parameter([&](const at::Tensor& parameter) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    return false;
  });
  if (!gradients.empty()) multiply(gradients, correction);
}

const OptimizerState::Ownership& OptimizerState::ownership() const {
  const auto core = require_core(core_);
  const std::size_t fingerprint = fingerprint_of_parameters(*optimizer_);
  const int64_t version = core->models.version();
  if (ownership_.fingerprint == fingerprint && ownership_.models_version == version) {
    return ownership_;
  }
  ownership_ = {.fingerprint = fingerprint, .models_version = version};
  any_parameter([&](const at::Tensor& parameter) {
    ownership_.tensors.insert(parameter.unsafeGetTensorImpl());
    return false;
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
  return window_ ? window_->gathered.samples : require_core(core_)->loader_progress().samples;
}

void OptimizerState::require_prepared_model() const {
  if (loose_parameters_ || !ownership().models.empty()) return;
  throw Error(
      ErrorDetails{.problem = "None of the optimizer's parameters belongs to a prepared model",
                   .expected = "the model in prepare() together with its optimizer",
                   .got = c10::str("an optimizer over ", ownership().tensors.size(),
                                   " tensors of no prepared model"),
                   .hint = "prepare the model, too; for tensors that are in no model use "
                           "prepare_optimizer(optimizer, {.loose_parameters = true})"});
}

}  // namespace accelerant::detail
