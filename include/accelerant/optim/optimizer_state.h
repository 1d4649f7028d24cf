// Saving and loading the state of an optimizer of torch::optim, by the names of its parameters.
//
//   const accelerant::optim::ParameterNames names(net->named_parameters());
//   const accelerant::NamedState state = accelerant::optim::optimizer_state_dict(adamw, names);
//   ...
//   accelerant::optim::load_optimizer_state_dict(adamw, names, state);  // goes on bit for bit
//
// SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS, and classes derived from them, of which only what
// the base has is saved. Fields have the names of Python's torch.optim:
//
//   values   {"kind": "AdamW",
//             "param_groups": [{"params": ["fc.weight", "fc.bias"], "lr": 0.001, ...}],
//             "state": {"fc.weight": {"step": 3}, ...}}     only parameters that have a state
//   tensors  "exp_avg.fc.weight", "exp_avg_sq.fc.weight", ...: the field, a dot, the parameter's
//            name; elements of lists (LBFGS) are "old_dirs[0].fc.weight", and "old_dirs" in the
//            values is their number.
//
// Numbers that JSON lacks are "inf", "-inf" and "nan". A parameter without a name is
// "group.<group>.<place in it>". Files in the form of Python's optimizer.state_dict() are read and
// written by checkpoint/training_files.h.
#pragma once

#include <string>
#include <unordered_map>

#include "accelerant/tensor/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim {

// The names of parameters, for what is saved of an optimizer: an optimizer itself knows none.
//
//   accelerant::optim::ParameterNames names(net->named_parameters());
//
//   accelerant::optim::ParameterNames names;                  // two models, one optimizer
//   names.add(generator->named_parameters(), "generator.");
//   names.add(discriminator->named_parameters(), "discriminator.");
//
// Holds the parameters, so that a name is never taken for another tensor at the same address.
class ParameterNames {
 public:
  // No names: parameters are then called by their place in the optimizer.
  ParameterNames() = default;

  explicit ParameterNames(const StateDict& parameters);

  // Each name gets the prefix. A parameter that has a name keeps it (tied weights have two). A name
  // that another parameter has is an Error.
  void add(const StateDict& parameters, const std::string& prefix = "");
  void add(const std::string& name, const at::Tensor& parameter);

  // The name of the parameter, or null.
  const std::string* find(const at::Tensor& parameter) const;

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

// The tensors are the optimizer's own, not copies: they change with its next step. An Error for a
// class that is none of those above.
NamedState optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names);

// Makes the optimizer what the saved one was: options such as the learning rate, step counts and
// tensors; a parameter that had no state has none afterwards. State tensors that fit are written in
// place, others are made on the parameter's device in the saved type. The saved tensors are copied.
//
// Groups must hold the same parameters by name and shape, in any order within a group (LBFGS: in
// the same order). All is checked before anything is changed; an Error lists all that does not fit.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                               const NamedState& state);

}  // namespace accelerant::optim
