// Saves and loads the state of a torch::optim optimizer by the names of its parameters.
//
//   const accelerant::optim::ParameterNames names(net->named_parameters());
//   const accelerant::NamedState state = accelerant::optim::optimizer_state_dict(adamw, names);
//   ...
//   accelerant::optim::load_optimizer_state_dict(adamw, names, state);  // continues bit for bit
//
// Supports SGD, Adam, AdamW, Adagrad, RMSprop, LBFGS and Lion, and classes derived from them, for
// which only the state of the base class is saved. Fields have the names of Python's torch.optim:
//
//   values   {"kind": "AdamW",
//             "param_groups": [{"params": ["fc.weight", "fc.bias"], "lr": 0.001, ...}],
//             "state": {"fc.weight": {"step": 3}, ...}}     only parameters with a state
//   tensors  "exp_avg.fc.weight", "exp_avg_sq.fc.weight", ...: the field, a dot, the parameter's
//            name; elements of lists (LBFGS) are "old_dirs[0].fc.weight", and "old_dirs" in the
//            values is their count.
//
// Numbers that JSON lacks are "inf", "-inf" and "nan". A parameter without a name is called
// "group.<group>.<index in it>". checkpoint/training_files.h reads and writes files in the form of
// Python's optimizer.state_dict().
#pragma once

#include <string>
#include <unordered_map>

#include "accelerant/tensor/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim {

// The names of parameters, for saving an optimizer, which itself knows no names.
//
//   accelerant::optim::ParameterNames names(net->named_parameters());
//
//   accelerant::optim::ParameterNames names;                  // two models, one optimizer
//   names.add(generator->named_parameters(), "generator.");
//   names.add(discriminator->named_parameters(), "discriminator.");
//
// Holds the parameters, so that a name never refers to another tensor at the same address.
class ParameterNames {
 public:
  // No names: parameters are then called by their position in the optimizer.
  ParameterNames() = default;

  explicit ParameterNames(const StateDict& parameters);

  // Adds the prefix to each name. A parameter that already has a name keeps it (tied weights have
  // two). Throws Error if another parameter has the name.
  void add(const StateDict& parameters, const std::string& prefix = "");
  void add(const std::string& name, const at::Tensor& parameter);

  // The name of the parameter, or nullptr.
  const std::string* find(const at::Tensor& parameter) const;

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

// The tensors are the optimizer's own, not copies: they change with its next step. Throws Error for
// a class other than those above.
NamedState optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names);

// Makes the optimizer equal to the saved one: options such as the learning rate, step counts and
// tensors. A parameter that had no state has none afterwards. Matching state tensors are
// overwritten in place; others are created on the parameter's device in the saved type. The saved
// tensors are copied.
//
// Groups must hold the same parameters by name and shape, in any order within a group (for LBFGS,
// in the same order). Everything is checked before anything changes; an Error lists all
// differences.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names,
                               const NamedState& state);

}  // namespace accelerant::optim
