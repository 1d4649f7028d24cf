// OptimizerState: what steps that are captured need of it.
#include "accelerator/optimizer_state.h"

#include <torch/optim/optimizer.h>

#include "accelerator/capture/recorder.h"
#include "accelerator/gradient_fingerprint.h"

namespace accelerant::detail {

bool OptimizerState::any_parameter(const std::function<bool(const at::Tensor&)>& f) const {
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (f(parameter)) return true;
    }
  }
  return false;
}

void OptimizerState::refuse_capture_of_host_step() {
  StepRecorder* const recorder = require_core(core_)->recorder;
  if (recorder == nullptr || !recorder->needs_steps_on_device() || step_.is_on_device()) return;
  recorder->refuse(
      "an optimizer steps on the host, since it is of another kind than fused kernels serve, or "
      "they "
      "are turned off");
}

uint64_t OptimizerState::fingerprint_for_graphs() {
  return step_.of_graphs() != nullptr ? step_.of_graphs()->fingerprint() : 0;
}

void OptimizerState::prepare_replay() {
  const auto core = require_core(core_);
  FusedStep* const fused = step_.of_graphs();
  if (fused == nullptr) return core->settle_schedules();
  const auto choice = core->rate_choice_for(*optimizer_);
  choice ? fused->prepare_replay(*choice) : fused->prepare_replay();
}

void OptimizerState::begin_capture() {
  if (step_.of_graphs() != nullptr) step_.of_graphs()->reserve_for_capture();
}

std::vector<at::Tensor> OptimizerState::end_capture() {
  step_.discard();
  if (step_.of_graphs() == nullptr) return {};
  return step_.of_graphs()->take_memory_of_graphs();
}

// Kernels of a graph write behind autograd's back.
void OptimizerState::note_gradients_written() {
  any_parameter([](const at::Tensor& parameter) {
    if (parameter.grad().defined()) parameter.grad().unsafeGetTensorImpl()->bump_version();
    return false;
  });
}

void OptimizerState::note_parameters_written() {
  if (step_.of_graphs() != nullptr) return step_.of_graphs()->note_replayed();
  any_parameter([](const at::Tensor& parameter) {
    parameter.unsafeGetTensorImpl()->bump_version();
    return false;
  });
}

std::size_t OptimizerState::fingerprint_of_gradients() const {
  std::size_t fingerprint = 0;
  any_parameter([&](const at::Tensor& parameter) {
    mix_gradient(fingerprint, parameter);
    return false;
  });
  return fingerprint;
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
  // A capture writes to no gradient, but counts as if it had.
  used_gradients_ = progress.has_used_gradients ? fingerprint_of_gradients() : 0;
  cleared_gradients_ = progress.has_cleared_gradients ? fingerprint_of_gradients() : 0;
  backwards_at_last_step_ = progress.backwards_at_last_step;
}

}  // namespace accelerant::detail
