// How a prepared optimizer steps: in the two passes of a FusedStep if its kind supports it, else
// with its own step().
//
// If its state is offloaded, the fused step runs on the host, and nothing else will do.
//
// A fused step clips while it runs, so clipping only notes the limit. Code that reads or changes
// the gradients before the step must first write what was noted into them.
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
  OptimizerStep(torch::optim::Optimizer& optimizer, std::optional<bool> fused,
                const FusedStepOptions& options);

  StepResult step(GradScaler& scaler);
  StepResult step(GradScaler& scaler, const std::function<at::Tensor()>& closure);

  // Leaves the gradients unchanged and lets the next step clip. Returns the norm of all gradients,
  // or nullopt if only the gradients themselves can be clipped.
  std::optional<at::Tensor> clip_with_step(double max_norm, GradScaler& scaler);

  // Applies to the gradients themselves what the next step was to do, after the loss scale is
  // removed.
  void write_noted();

  // Whether something was noted for the next step.
  bool has_noted() const { return fused_ && fused_->has_noted(); }

  // The gradients have changed since their norm was computed.
  void note_gradients_changed() {
    if (fused_) fused_->note_gradients_changed();
  }

  // There will be no step with these gradients.
  void discard();

  // Whether the next step needs no data from the host, so that a graph can contain it.
  bool is_on_device();

  // Null if the optimizer uses its own step, or has not stepped yet. For graphs that contain the
  // step.
  FusedStep* fused_so_far() { return fused_ ? &*fused_ : nullptr; }

  // Copies the step counts from the device to the optimizer. Waits for the device.
  void sync();

 private:
  // Null if the optimizer uses its own step. Decided at first use, when its parameters are on their
  // final device.
  FusedStep* fused();

  bool needs_fused() const { return options_.on_host || options_.master_weights; }

  torch::optim::Optimizer& optimizer_;
  std::optional<bool> is_wanted_;
  FusedStepOptions options_;
  bool is_decided_ = false;
  std::optional<FusedStep> fused_;
};

}  // namespace accelerant::detail
