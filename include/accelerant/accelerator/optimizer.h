// A prepared optimizer. It steps only where a window of accumulated gradients is complete, undoes
// the loss scale, and says truthfully what became of a step.
//
//   auto optimizer = accelerator.prepare_optimizer(adamw);
//   ...
//   optimizer.step();       // does nothing in the middle of a window
//   optimizer.zero_grad();  // neither does this
//
// SGD, Adam, AdamW, Adagrad, RMSprop of torch::optim and our Lion step in fused kernels, see
// docs/performance.md. Moments are those of the original all the same; its own step counts, and
// under fp16 on a GPU the learning rate of a schedule, are up to date after sync(), in every
// checkpoint, and after end_training() and free_memory(). A step() of the original itself is not
// noticed.
//
// An Optimizer is a cheap handle, copies mean the same optimizer. The torch::optim object is
// borrowed (or shared, if it was given as a shared pointer) and stays usable.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerant/amp/step_result.h"

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace accelerant {

struct PrepareOptimizerOptions {
  // Whether tensors of the optimizer's state are moved to their parameters' devices. Default: the
  // Accelerator's own option.
  std::optional<bool> device_placement = std::nullopt;

  // Allows an optimizer none of whose parameters belongs to a prepared model. Otherwise its first
  // step is an Error, since as a rule it means that a model was forgotten.
  bool loose_parameters = false;

  // Whether the step runs in two kernels of ours over all tensors (accelerant/optim/fused_step.h)
  // rather than in the optimizer's own loop. true: an Error where that cannot be. Default: the
  // Accelerator's option `fused`.
  std::optional<bool> fused = std::nullopt;
};

namespace detail {
class OptimizerState;
}

class Optimizer {
 public:
  // An empty handle, to be assigned to. Using it is an Error.
  Optimizer() = default;

  // Steps if the window is complete. Under fp16 gradients are unscaled first, and an overflow skips
  // the step; asking the result about that may wait for the device.
  StepResult step() const;

  // With a closure that computes the loss anew, as LBFGS needs it. The closure calls
  // Accelerator::backward. Not under fp16.
  StepResult step(const std::function<at::Tensor()>& closure) const;

  // Clears the gradients, but never ones that still wait for their step: in the middle of a window
  // nothing happens. It may stand behind step() or in front of the forward.
  void zero_grad(bool set_to_none = true) const;

  // Whether overflow kept the last executed step from being applied; false before the first. Stays
  // until the next step is executed. May wait for the device.
  bool step_was_skipped() const;

  // Makes the step counts in the original's state those of the device, and its learning rates those
  // after the last step of its schedule, for torch::save for example. Waits for the device.
  void sync() const;

  // Of the original.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  void add_param_group(const torch::optim::OptimizerParamGroup& group) const;

  // The original.
  torch::optim::Optimizer& optimizer() const;

  // Handles of the same optimizer are equal.
  friend bool operator==(const Optimizer& a, const Optimizer& b) { return a.state_ == b.state_; }

 private:
  friend class Accelerator;

  explicit Optimizer(std::shared_ptr<detail::OptimizerState> state) : state_(std::move(state)) {}

  detail::OptimizerState& state() const;

  std::shared_ptr<detail::OptimizerState> state_;
};

}  // namespace accelerant
