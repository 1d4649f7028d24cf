#include "accelerator/optimizer_placement.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace accelerant::detail {
namespace {

using torch::optim::OptimizerParamState;

void move(at::Tensor& tensor, c10::Device device) {
  if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device);
}

// Handles the state if it is of the type; says whether it was.
template <class State, class MoveTensors>
bool move_if(OptimizerParamState& state, MoveTensors&& move_tensors) {
  auto* typed = dynamic_cast<State*>(&state);
  if (typed == nullptr) return false;
  move_tensors(*typed);
  return true;
}

void move_state(OptimizerParamState& state, c10::Device device) {
  const auto adam = [&](auto& s) {
    move(s.exp_avg(), device);
    move(s.exp_avg_sq(), device);
    move(s.max_exp_avg_sq(), device);
  };
  if (move_if<torch::optim::AdamParamState>(state, adam)) return;
  if (move_if<torch::optim::AdamWParamState>(state, adam)) return;
  if (move_if<torch::optim::SGDParamState>(state,
                                           [&](auto& s) { move(s.momentum_buffer(), device); })) {
    return;
  }
  if (move_if<torch::optim::AdagradParamState>(state, [&](auto& s) { move(s.sum(), device); })) {
    return;
  }
  if (move_if<torch::optim::RMSpropParamState>(state, [&](auto& s) {
        move(s.square_avg(), device);
        move(s.momentum_buffer(), device);
        move(s.grad_avg(), device);
      })) {
    return;
  }
  move_if<torch::optim::LBFGSParamState>(state, [&](auto& s) {
    move(s.d(), device);
    move(s.H_diag(), device);
    move(s.prev_flat_grad(), device);
    for (auto* list : {&s.old_dirs(), &s.old_stps(), &s.ro()}) {
      for (at::Tensor& tensor : *list) move(tensor, device);
    }
    if (s.al()) {
      for (at::Tensor& tensor : *s.al()) move(tensor, device);
    }
  });
}

}  // namespace

void move_state_to_parameters(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) move_state(*found->second, parameter.device());
    }
  }
}

}  // namespace accelerant::detail
