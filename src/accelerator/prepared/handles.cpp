// The handles that prepare() returns; each forwards to its state.
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <nlohmann/json.hpp>

#include "accelerant/accelerator/model.h"
#include "accelerant/accelerator/optimizer.h"
#include "accelerant/core/error.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/scheduler_state.h"

namespace accelerant {

detail::ModelState& ModelBase::state() const {
  if (!state_) detail::refuse_empty_handle("Model");
  return *state_;
}

void ModelBase::train(bool on) const { state().module().train(on); }
bool ModelBase::is_training() const { return state().module().is_training(); }
void ModelBase::to(c10::Device device) const { state().module().to(device); }
void ModelBase::to(c10::ScalarType dtype) const { state().module().to(dtype); }

std::vector<at::Tensor> ModelBase::parameters() const { return named_parameters().values(); }
StateDict ModelBase::named_parameters() const { return state().module().named_parameters(); }
std::vector<at::Tensor> ModelBase::buffers() const { return named_buffers().values(); }
StateDict ModelBase::named_buffers() const { return state().module().named_buffers(); }
StateDict ModelBase::state_dict() const { return state().module().state_dict(); }

void ModelBase::load_state_dict(const StateDict& given, bool strict) const {
  const StateDict own = state_dict();
  std::string faults;
  for (const auto& item : own) {
    const at::Tensor* value = given.find(item.key());
    if (value == nullptr) {
      if (strict) faults += "\n  missing: " + item.key();
    } else if (value->sizes() != item.value().sizes()) {
      faults += c10::str("\n  shape of ", item.key(), ": expected ", item.value().sizes(), ", got ",
                         value->sizes());
    }
  }
  for (const auto& item : given) {
    if (strict && !own.contains(item.key())) faults += "\n  unexpected: " + item.key();
  }
  if (!faults.empty()) throw Error("The state does not fit the model:" + faults);

  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    if (const at::Tensor* value = given.find(item.key())) item.value().copy_(*value);
  }
}

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
  state().core()->settle_schedules();  // earlier steps do not apply to the new group
  optimizer().add_param_group(group);
}

torch::optim::Optimizer& Optimizer::optimizer() const { return state().optimizer(); }

detail::SchedulerState& Scheduler::state() const {
  if (!state_) detail::refuse_empty_handle("Scheduler");
  return *state_;
}

void Scheduler::step() const { state().step(); }
void Scheduler::step(double metric) const { state().step(metric); }
std::vector<double> Scheduler::get_last_lr() const { return state().last_lrs(); }
nlohmann::json Scheduler::state_dict() const { return state().schedule().state_dict(); }

void Scheduler::load_state_dict(const nlohmann::json& given) const {
  state().schedule().load_state_dict(given);
}

}  // namespace accelerant
