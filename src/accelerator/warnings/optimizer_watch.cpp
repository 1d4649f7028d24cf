#include "accelerator/warnings/optimizer_watch.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_tensors.h"

namespace accelerant::detail {
namespace {

// Once may be a program that looks ahead, as sharpness-aware minimisation does in its first step.
constexpr int kForeignUpdates = 2;

// The first few may be those of a part of the model that is trained later.
constexpr int kEmptySteps = 3;

// Waits for the device.
bool is_zero(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  return !gradient.to_dense().ne(0).any().item<bool>();
}

bool has_nonzero_gradient(const ModelState& model) {
  return std::ranges::any_of(model.parameters(), [](const at::Tensor& parameter) {
    return parameter.grad().defined() && !is_zero(parameter.grad());
  });
}

}  // namespace

void OptimizerWatch::before_backward(Core& core, const Window* window) {
  look_for_foreign_update(core);
  if (window == nullptr) return;
  if (window == gathering_) look_for_lost_gradients(core, *window);
  gathering_ = nullptr;  // until the backward has succeeded
}

// Only of an optimizer that was never asked to step: then its original is used throughout. Programs
// that change parameters for reasons of their own step with the prepared one, too.
void OptimizerWatch::look_for_foreign_update(Core& core) {
  if (was_called_ || !has_backward_ || updates_ != core.counts.updates) return;
  if (!core.warnings.is_open(&WarningOptions::bypassed_optimizer)) return;
  const TensorMark now = mark_of_parameter(witness_of(optimizer_));
  if (now.tensor != parameter_.tensor || now == parameter_) return;
  if (++foreign_updates_ < kForeignUpdates) return;
  core.warnings.say(
      &WarningOptions::bypassed_optimizer,
      "Parameters change after each backward() although the prepared optimizer was never asked to "
      "step: is step() called on the original optimizer? It knows nothing of windows, loss scaling "
      "and clipping. Call it on what prepare() returned: optimizer.step()");
}

void OptimizerWatch::look_for_lost_gradients(Core& core, const Window& window) const {
  if (window.gathered.micro_steps == 0) return;
  if (!core.warnings.is_open(&WarningOptions::bypassed_backward)) return;
  const at::Tensor parameter = witness_of(optimizer_);
  if (!parameter.defined() || mark_of(parameter.grad()) == gradient_) return;
  if (parameter.grad().defined() && !is_zero(parameter.grad())) {
    // The program changes gradients on purpose. Not looked at again, since looking waits.
    core.warnings.close(&WarningOptions::bypassed_backward);
    return;
  }
  core.warnings.say(
      &WarningOptions::bypassed_backward,
      c10::str("Gradients were cleared in the middle of an accumulation window, after ",
               window.gathered.micro_steps, " of ", core.window_rules().steps,
               " micro-steps: was zero_grad() called on the model or on the original optimizer? "
               "Call it on what prepare() returned, which keeps them until the window is "
               "complete: optimizer.zero_grad()"));
}

void OptimizerWatch::after_backward(const Core& core, const Window* window) {
  if (!was_called_) {
    has_backward_ = true;
    parameter_ = mark_of_parameter(witness_of(optimizer_));
    updates_ = core.counts.updates;
  }
  if (window != nullptr) {
    const at::Tensor parameter = witness_of(optimizer_);
    gathering_ = !window->complete && parameter.defined() ? window : nullptr;
    gradient_ = gathering_ != nullptr ? mark_of(parameter.grad()) : TensorMark();
  }
  // Only an order that never worked is told, so only the first steps pay for it.
  if (!has_stepped_) had_gradients_ = had_gradients_ || has_gradients(optimizer_);
}

void OptimizerWatch::before_step(Core& core, const std::vector<const ModelState*>& models,
                                 int64_t backwards) const {
  const bool ran_backward = core.counts.backwards > backwards;
  const bool needs_backward = core.window_rules().steps > 1 || core.scales_loss();
  if (!ran_backward && needs_backward) {
    core.warnings.say(
        &WarningOptions::bypassed_backward,
        "optimizer.step() found gradients that accelerator.backward() did not make: was "
        "loss.backward() called, or backward() of another Accelerator? Such gradients are neither "
        "scaled nor divided by the size of the accumulation window. Write "
        "accelerator.backward(loss) with the Accelerator that prepared the optimizer");
  }
  if (!ran_backward || *core.options.mixed_precision == Precision::no) return;
  if (!core.warnings.is_open(&WarningOptions::bypassed_model)) return;
  // A forward may have run under autocast all the same.
  if (core.counts.backwards_at_hidden_forward >= backwards) return;
  if (is_autocast_enabled(core.options.device->type())) return;
  for (const ModelState* model : models) {
    if (model->backwards_at_forward() >= backwards) continue;
    if (!has_nonzero_gradient(*model)) {  // it did not take part
      core.warnings.close(&WarningOptions::bypassed_model);
      return;
    }
    core.warnings.say(
        &WarningOptions::bypassed_model,
        "A step uses gradients of a model whose prepared handle was not called since the step "
        "before: was the original called, as in net->forward(x)? It runs without mixed precision, "
        "unless the program has an AutocastGuard of its own. Call what prepare() returned, "
        "model(x), or open auto scope = accelerator.autocast() around the original");
    return;
  }
}

void OptimizerWatch::note_empty_step(Core& core, int64_t backwards) {
  is_empty_step_ = true;
  if (has_stepped_ || !core.warnings.is_open(&WarningOptions::missing_gradients)) return;
  if (++empty_steps_ < kEmptySteps) return;
  std::string reason;
  if (had_gradients_) {
    reason =
        "although backward() made some: they were cleared before the step. The order is "
        "accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()";
  } else if (core.counts.backwards > backwards) {
    reason =
        "although backward() ran: the loss does not depend on the optimizer's parameters. Was the "
        "optimizer made from the parameters of the model that is trained, and is the output not "
        "detached?";
  } else {
    reason = "as no backward ran. Before the step, call accelerator.backward(loss)";
  }
  core.warnings.say(&WarningOptions::missing_gradients,
                    "optimizer.step() has found no gradients so far, " + reason);
}

void OptimizerWatch::after_step() {
  if (!is_empty_step_) has_stepped_ = true;
  is_empty_step_ = false;
  start_over();
}

void OptimizerWatch::start_over() {
  has_backward_ = false;
  gathering_ = nullptr;
}

}  // namespace accelerant::detail
