// Prepared optimizers and learning-rate schedules.
//
//   auto [optimizer, scheduler] = accelerator.prepare(adamw, cosine);
//   ...
//   optimizer.step();       // does nothing in the middle of a window
//   scheduler.step();       // nor does this
//   optimizer.zero_grad();  // nor this
//
// A prepared optimizer steps only when a window of accumulated gradients is complete, undoes the
// loss scale, and reports whether the step was applied. SGD, Adam, AdamW, Adagrad and RMSprop of
// torch::optim and Accelerant's Lion step in fused kernels, see docs/performance.md. The moments
// stay in the original's state. The original's step counts, and under fp16 on a GPU its scheduled
// learning rates, are up to date after sync(), in every checkpoint, and after end_training() and
// free_memory(). A step() that you call on the original is not noticed.
//
// Both are cheap handles; copies refer to the same object. What was passed to prepare by name is
// borrowed and stays usable; what was passed as a shared pointer is shared, and a temporary schedule
// is kept inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
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
  // Move the tensors of the optimizer's state to the devices of their parameters. Default: the
  // Accelerator's own option.
  std::optional<bool> device_placement = std::nullopt;

  // Allow an optimizer none of whose parameters belong to a prepared model. Otherwise its first
  // step is an Error, since this usually means that a model was not prepared.
  bool loose_parameters = false;

  // Run the step in two fused kernels over all tensors (accelerant/optim/fused_step.h) instead of
  // the optimizer's own loop. true: throw Error if that is not possible. Default: the Accelerator's
  // option `fused`.
  std::optional<bool> fused = std::nullopt;

  // Allow parameters that another prepared optimizer has too. Otherwise that is an Error, since
  // each step would be made twice. Not possible under fp16.
  bool shared_parameters = false;
};

namespace detail {
class OptimizerState;
class SchedulerState;
}  // namespace detail

class Optimizer {
 public:
  // An empty handle. Assign to it before use; using it is an Error.
  Optimizer() = default;

  // Steps if the window is complete. Under fp16 the gradients are unscaled first. Gradients that
  // are inf or nan may skip the step or throw Error: see AcceleratorOptions::nonfinite. Asking the
  // result whether it was skipped may wait for the device.
  StepResult step() const;

  // Steps with a closure that computes the loss again, as LBFGS needs. The closure must call
  // Accelerator::backward. Not available under fp16, or if
  // AcceleratorOptions::nonfinite is skip or stop.
  StepResult step(const std::function<at::Tensor()>& closure) const;

  // Clears the gradients, except those that still wait for their step: in the middle of a window it
  // does nothing. Call it after step() or before the forward.
  void zero_grad(bool set_to_none = true) const;

  // Whether gradients that were inf or nan caused the last executed step to be skipped; false
  // before the first step. Keeps its value until the next step is executed. May wait for the
  // device.
  bool step_was_skipped() const;

  // Updates the original's step counts from the device, and its learning rates to those after the
  // last step of its schedule. Call it before torch::save, for example. Waits for the device.
  void sync() const;

  // Forwarded to the original.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  void add_param_group(const torch::optim::OptimizerParamGroup& group) const;

  // The original optimizer.
  torch::optim::Optimizer& optimizer() const;

  // Handles of the same optimizer are equal.
  friend bool operator==(const Optimizer& a, const Optimizer& b) { return a.state_ == b.state_; }

 private:
  friend class Accelerator;

  explicit Optimizer(std::shared_ptr<detail::OptimizerState> state) : state_(std::move(state)) {}

  detail::OptimizerState& state() const;

  std::shared_ptr<detail::OptimizerState> state_;
};

// A prepared learning-rate schedule. Call step() after optimizer.step(). The schedule advances only
// with optimizer updates: not in the middle of a window, and not for a step that was skipped
// because of overflow. AcceleratorOptions::schedule_unit says what one step counts.
class Scheduler {
 public:
  // An empty handle. Assign to it before use; using it is an Error.
  Scheduler() = default;

  // Advances the schedule. Throws Error for reduce-on-plateau, which needs a metric.
  void step() const;

  // For reduce-on-plateau: takes one metric per call. Ignores windows and skipped steps, since a
  // metric belongs to an evaluation, not to an update.
  void step(double metric) const;

  // The current learning rates, one for each parameter group.
  std::vector<double> get_last_lr() const;

  // The state of the schedule itself. For a schedule of torch::optim this is its step count; the
  // rates are part of the optimizer.
  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state) const;

  // Handles of the same schedule are equal.
  friend bool operator==(const Scheduler& a, const Scheduler& b) { return a.state_ == b.state_; }

 private:
  friend class Accelerator;

  explicit Scheduler(std::shared_ptr<detail::SchedulerState> state) : state_(std::move(state)) {}

  detail::SchedulerState& state() const;

  std::shared_ptr<detail::SchedulerState> state_;
};

}  // namespace accelerant
