#include "accelerator/warnings/gradient_watch.h"

#include <ATen/core/grad_mode.h>

#include <vector>

#include "accelerant/optim/clip_grad.h"
#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_tensors.h"

namespace accelerant::detail {
namespace {

// Once may be meant, for example to see gradients grow.
constexpr int kToldAt = 2;

// Taking a norm waits for the device.
constexpr int kComparedBackwards = 3;

// Masks, averages and other changes that do not depend on the loss scale leave more of the norm; a
// limit that ignores a scale of 65536 leaves less.
constexpr double kClippedTo = 1.0 / 16;

// Of one gradient, which stands for all.
TensorMark mark_of_gradients(torch::optim::Optimizer& optimizer) {
  TensorMark mark;
  any_parameter(optimizer, [&](const at::Tensor& parameter) {
    if (!parameter.grad().defined()) return false;
    mark = mark_of(parameter.grad());
    return true;
  });
  return mark;
}

}  // namespace

void GradientWatch::before_backward(bool are_used) {
  were_used_ = are_used;
  if (has_old_ && mark_of_gradients(optimizer_) != gradient_) {
    has_old_ = false;  // cleared by other means than the prepared optimizer
  }
}

void GradientWatch::after_backward(const Core& core, bool are_used, bool is_at_boundary) {
  if (were_used_ && !are_used) has_old_ = true;
  if (has_old_) gradient_ = mark_of_gradients(optimizer_);
  const bool compares = is_at_boundary && compared_ < kComparedBackwards && core.scales_loss() &&
                        core.warnings.is_open(&WarningOptions::scaled_gradients);
  norm_.reset();
  if (!compares) return;
  norm_ = norm();
  if (norm_) ++compared_;
}

void GradientWatch::note_late_clipping(Core& core) {
  if (!core.warnings.is_open(&WarningOptions::used_gradients)) return;
  if (++late_clippings_ < kToldAt) return;
  core.warnings.say(
      &WarningOptions::used_gradients,
      "Gradients are clipped after the step that has used them, which has no effect. The order is "
      "accelerator.backward(loss); accelerator.clip_grad_norm_(model, 1.0); optimizer.step(); "
      "optimizer.zero_grad()");
}

void GradientWatch::before_step(Core& core, bool are_scaled) {
  look_for_old_gradients(core);
  if (norm_ && are_scaled) look_for_scaled_clipping(core);
  norm_.reset();
}

void GradientWatch::look_for_old_gradients(Core& core) {
  if (!has_old_ || !core.warnings.is_open(&WarningOptions::used_gradients)) return;
  if (++steps_with_old_ < kToldAt) return;
  core.warnings.say(
      &WarningOptions::used_gradients,
      "backward() adds to gradients that the previous step has already used: each update contains "
      "the gradients of all batches before. After optimizer.step(), call optimizer.zero_grad()");
}

void GradientWatch::look_for_scaled_clipping(Core& core) const {
  const std::optional<double> now = norm();
  const bool is_clipped = now && *now > 0 && *now < *norm_ * kClippedTo;  // false for nan
  if (!is_clipped) return;
  core.warnings.say(
      &WarningOptions::scaled_gradients,
      "Under fp16, gradients became much smaller between backward() and step() while they carried "
      "the loss scale. If torch::nn::utils::clip_grad_norm_() did that, updates are thousands of "
      "times too small. Write accelerator.clip_grad_norm_(model, 1.0), or call "
      "accelerator.unscale_gradients() before changing gradients");
}

std::optional<double> GradientWatch::norm() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for_each_parameter(optimizer_, [&](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.layout() == at::kStrided) gradients.push_back(gradient);
  });
  if (gradients.empty()) return std::nullopt;
  return get_total_norm(gradients).item<double>();
}

void GradientWatch::start_over() {
  has_old_ = false;
  norm_.reset();
}

}  // namespace accelerant::detail
