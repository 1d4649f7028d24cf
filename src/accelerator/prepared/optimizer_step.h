// How a prepared optimizer steps: in the two passes of a FusedStep where its kind allows it, else
// by itself.
//
// A fused step clips on its way, so the limit is only noted for it. Where gradients themselves are
// looked at or changed before the step, what was noted is written into them first.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/optim/fused_step.h"

namespace accelerant::detail {

class OptimizerStep {
 public:
  // `fused` as in PrepareOptimizerOptions.
  OptimizerStep(torch::optim::Optimizer& optimizer, std::optional<bool> fused);

  StepResult step(GradScaler& scaler);
  StepResult step(GradScaler& scaler, const std::function<at::Tensor()>& closure);

  // Leaves the gradients as they are, and clips with the next step. Returns the norm of all of
  // them, or nothing if only the gradients themselves can be clipped.
  std::optional<at::Tensor> clip_with_step(double max_norm, GradScaler& scaler);

  // Does to the gradients themselves what was to be done with the next step, once the loss scale is
  // off them.
  void write_noted();

  // Whether something was noted for the next step.
  bool has_noted() const { return fused_ && fused_->has_noted(); }

  // The gradients are not those that were looked at for a norm.
  void note_gradients_changed() {
    if (fused_) fused_->note_gradients_changed();
  }

  // There will be no step with these gradients.
  void discard();

  // Whether the next step needs nothing of the host, so that a graph can hold it.
  bool is_on_device();

  // Null if the optimizer steps by itself, or has not stepped yet. For graphs, which need its step.
  FusedStep* fused_so_far() { return fused_ ? &*fused_ : nullptr; }

  // What the optimizer knows of its steps becomes what the device knows. Waits for it.
  void sync();

 private:
  // Null if the optimizer steps by itself. Decided with the first use, when its parameters are
  // where they stay.
  FusedStep* fused();

  torch::optim::Optimizer& optimizer_;
  std::optional<bool> is_wanted_;
  bool is_decided_ = false;
  std::optional<FusedStep> fused_;
};

}  // namespace accelerant::detail
