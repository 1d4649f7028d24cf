// The state of an optimizer in the structure of Python's optimizer.state_dict(), both ways:
//
//   NamedState python = optim::to_python_state(optim::optimizer_state_dict(adamw, names));     // to write a file
//   NamedState state = optim::from_python_state(python, adamw, names);                         // of what was read
//   optim::load_optimizer_state_dict(adamw, names, state);
//
// This is independent of file formats. The structure is a tree of dicts and lists, kept in two
// parts:
//
//   values   {"state": {"0": {...}, "1": {...}}, "param_groups": [{"lr": 0.001, ..., "params": [0, 1]}]}
//            The keys of "state" are integers in Python. Non-finite numbers are numbers here, or the texts "inf",
//            "-inf" and "nan". Tuples (betas) are lists.
//   tensors  by their path in the tree: "state.0.exp_avg"; an element of a list is "state.0.old_dirs.2", and in
//            the values null is at its place in the list.
//
// Parameters are known by number there, in the order of the groups.
#pragma once

#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim {

// From a state made by optimizer_state_dict. Step counts become zero-dimensional float32 tensors,
// as in Python; options that only Python has get Python's defaults. The tensors are shared, not
// copied.
NamedState to_python_state(const NamedState& state);

// To a state that load_optimizer_state_dict takes. The kind and the names come from the optimizer,
// as Python's state has neither: parameter i is the i-th of the optimizer's groups. Where a group
// has "param_names" that are the optimizer's names in another order, they decide. Nothing of the
// optimizer is changed.
//
// Options that only Python has: those that choose an implementation (foreach, fused, capturable,
// differentiable) and those that schedulers leave (initial_lr and others) are ignored. `maximize`
// is an Error, and so is a decoupled_weight_decay that is not that of the class (Python's Adam can
// have it, in libtorch it is AdamW). All faults are in one Error.
NamedState from_python_state(const NamedState& python, torch::optim::Optimizer& optimizer,
                             const ParameterNames& names);

}  // namespace accelerant::optim
