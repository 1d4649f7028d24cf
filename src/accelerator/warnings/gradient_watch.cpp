#include "accelerator/warnings/gradient_watch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <bit>

#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_tensors.h"

namespace accelerant::detail {
namespace {

// Once may be meant, for example to see gradients grow.
constexpr int kOften = 2;

// Comparing norms waits for the device.
constexpr int kComparedSteps = 3;

TensorMark mark_of_gradients(torch::optim::Optimizer& optimizer) {
  const at::Tensor parameter = witness_of(optimizer);
  return parameter.defined() ? mark_of(parameter.grad()) : TensorMark();
}

}  // namespace

void GradientWatch::before_backward(bool are_used) {
  if (are_used) {
    has_old_ = true;
  } else if (has_old_ && mark_of_gradients(optimizer_) != gradient_) {
    has_old_ = false;  // cleared by other means than the prepared optimizer
  }
}

void GradientWatch::after_backward(const Core& core) {
  if (has_old_) gradient_ = mark_of_gradients(optimizer_);
  const bool compares = core.scaler.is_enabled() && steps_ < kComparedSteps &&
                        core.warnings.is_open(&WarningOptions::scaled_gradients);
  if (compares) norms_ = norms();
}

void GradientWatch::before_clipping(Core& core, bool are_used) {
  if (!are_used || !core.warnings.is_open(&WarningOptions::used_gradients)) return;
  if (++late_clippings_ < kOften) return;
  core.warnings.say(
      &WarningOptions::used_gradients,
      "Gradients are clipped after the step that has used them, which has no effect. The order is "
      "accelerator.backward(loss); accelerator.clip_grad_norm_(model, 1.0); optimizer.step(); "
      "optimizer.zero_grad()");
}

void GradientWatch::before_step(Core& core, bool are_scaled) {
  look_for_old_gradients(core);
  if (!norms_.empty()) {
    ++steps_;
    if (are_scaled) look_for_changed_scale(core);
    norms_.clear();
  }
}

void GradientWatch::look_for_old_gradients(Core& core) {
  if (!has_old_ || !core.warnings.is_open(&WarningOptions::used_gradients)) return;
  if (++steps_with_old_ < kOften) return;
  core.warnings.say(
      &WarningOptions::used_gradients,
      "backward() adds to gradients that the step before has already used: each update repeats all "
      "updates before it. After optimizer.step(), call optimizer.zero_grad()");
}

void GradientWatch::look_for_changed_scale(Core& core) const {
  if (norms() == norms_) return;
  core.warnings.say(
      &WarningOptions::scaled_gradients,
      "Under fp16, gradients were changed between backward() and step() while they carry the loss "
      "scale: a limit for their size, as in torch::nn::utils::clip_grad_norm_(), is then thousands "
      "of times too small, and nothing is learnt. Write accelerator.clip_grad_norm_(model, 1.0), "
      "or call accelerator.unscale_gradients() before changing them");
}

std::vector<uint64_t> GradientWatch::norms() const {
  const at::NoGradGuard no_grad;
  std::vector<uint64_t> norms;
  for_each_parameter(optimizer_, [&](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) return;
    const bool is_double = gradient.scalar_type() == at::kDouble;
    const at::Tensor norm =
        at::linalg_vector_norm(gradient, 2, {}, false, is_double ? at::kDouble : at::kFloat);
    norms.push_back(std::bit_cast<uint64_t>(norm.item<double>()));  // nan equals itself
  });
  return norms;
}

void GradientWatch::start_over() {
  has_old_ = false;
  norms_.clear();
}

}  // namespace accelerant::detail
