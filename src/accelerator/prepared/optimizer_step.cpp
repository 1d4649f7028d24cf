#include "accelerator/prepared/optimizer_step.h"

#include <torch/optim/optimizer.h>

#include "accelerant/core/error.h"

namespace accelerant::detail {

OptimizerStep::OptimizerStep(torch::optim::Optimizer& optimizer, std::optional<bool> fused,
                             const FusedStepOptions& options)
    : optimizer_(optimizer), is_wanted_(fused), options_(options) {
  if (needs_fused() && is_wanted_ == false) {
    throw Error(ErrorDetails{
        .problem = "The optimizer must step in fused kernels",
        .expected = "fused steps, as offload.optimizer and master_weights of the Accelerator need",
        .got = "fused = false",
        .hint = "omit `fused`, or those options"});
  }
  // On the host it does not matter where parameters will be; and who loads the state asks it where
  // the tensors are to be.
  if (options_.on_host) this->fused();
}

FusedStep* OptimizerStep::fused() {
  if (!is_decided_) {
    const bool is_allowed = is_wanted_.value_or(true);
    auto reason = is_allowed ? FusedStep::why_not(optimizer_, options_) : std::nullopt;
    if (reason && is_wanted_) {
      throw Error(
          ErrorDetails{.problem = "The optimizer cannot be stepped by fused kernels",
                       .expected = "an optimizer that fused kernels support, since fused = true",
                       .got = *reason,
                       .hint = "omit `fused`, so that the optimizer uses its own step"});
    }
    if (reason && needs_fused()) {
      throw Error(ErrorDetails{
          .problem = options_.on_host ? "The optimizer's state cannot be offloaded"
                                      : "The optimizer cannot keep float32 master weights",
          .expected = "SGD, Adam, AdamW, Adagrad or RMSprop of torch::optim, or Lion",
          .got = *reason,
          .hint = options_.on_host ? "use one of these, or leave offload.optimizer out"
                                   : "use one of these, or leave master_weights out"});
    }
    if (is_allowed && !reason) fused_.emplace(optimizer_, options_);
    is_decided_ = true;
  }
  return fused_ ? &*fused_ : nullptr;
}

StepResult OptimizerStep::step(GradScaler& scaler) {
  FusedStep* const fused_step = fused();
  return fused_step != nullptr ? fused_step->step(scaler) : scaler.step(optimizer_);
}

StepResult OptimizerStep::step(GradScaler& scaler, const std::function<at::Tensor()>& closure) {
  // If the scaler is enabled, it throws with the reason.
  if (scaler.is_enabled() || fused() == nullptr) return scaler.step(optimizer_, closure);
  return fused()->step(closure);
}

std::optional<at::Tensor> OptimizerStep::clip_with_step(double max_norm, GradScaler& scaler) {
  FusedStep* const fused_step = fused();
  if (fused_step == nullptr || !fused_step->can_step()) return std::nullopt;
  return fused_step->clip_grad_norm_(max_norm, scaler);
}

void OptimizerStep::write_noted() {
  if (fused_) fused_->write_noted();
}

void OptimizerStep::discard() {
  if (fused_) fused_->discard();
}

bool OptimizerStep::is_on_device() { return fused() != nullptr && fused()->can_step(); }

void OptimizerStep::sync() {
  if (fused_) fused_->sync();
}

}  // namespace accelerant::detail
