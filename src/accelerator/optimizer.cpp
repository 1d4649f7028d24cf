#include "accelerant/accelerator/optimizer.h"

#include <torch/optim/optimizer.h>

#include "accelerator/optimizer_state.h"

namespace accelerant {

detail::OptimizerState& Optimizer::state() const {
  if (!state_) detail::refuse_empty_handle("Optimizer");
  return *state_;
}

StepResult Optimizer::step() const { return state().step(nullptr); }

StepResult Optimizer::step(const std::function<at::Tensor()>& closure) const {
  return state().step(closure);
}

void Optimizer::zero_grad(bool set_to_none) const { state().zero_grad(set_to_none); }

bool Optimizer::step_was_skipped() const {
  const auto& last = state().last_step();
  return last && last->skipped();
}

void Optimizer::sync() const {
  state().core()->settle_schedules();
  state().sync();
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() const {
  state().core()->settle_schedules();
  return optimizer().param_groups();
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) const {
  state().core()->settle_schedules();  // whose steps so far are not the group's
  optimizer().add_param_group(group);
}

torch::optim::Optimizer& Optimizer::optimizer() const { return state().optimizer(); }

}  // namespace accelerant
