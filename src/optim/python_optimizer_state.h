// Converts the state of an optimizer to and from the structure of Python's optimizer.state_dict():
//
//   NamedState python = to_python_state(optimizer_state_dict(adamw, names));  // to write a file
//   NamedState state = from_python_state(python, adamw, names);               // after reading one
//   load_optimizer_state_dict(adamw, names, state);
//
// This is independent of file formats. The structure is a tree of dicts and lists, kept in two
// parts:
//
//   values   {"state": {"0": {...}, "1": {...}},
//             "param_groups": [{"lr": 0.001, ..., "params": [0, 1]}]}
//            In Python, the keys of "state" are integers. Non-finite numbers are numbers here, or
//            the strings "inf", "-inf" and "nan". Tuples (betas) are lists.
//   tensors  by their path in the tree: "state.0.exp_avg"; an element of a list is
//            "state.0.old_dirs.2", and the values have null at its position in the list.
//
// Parameters are identified by number, in the order of the groups.
#pragma once

#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim {

// Converts a state from optimizer_state_dict. Step counts become zero-dimensional float32 tensors,
// as in Python; options that only Python has get Python's defaults. The tensors are shared, not
// copied.
NamedState to_python_state(const NamedState& state);

// Converts to a state for load_optimizer_state_dict. The kind and the names come from the
// optimizer, because Python's state has neither: parameter i is the i-th of the optimizer's groups.
// If a group has "param_names" that are the optimizer's names in another order, those decide. Does
// not change the optimizer.
//
// Of the options that only Python has, those that choose an implementation (foreach, fused,
// capturable, differentiable) and those that schedulers add (initial_lr and others) are ignored.
// `maximize` is an Error, and so is a decoupled_weight_decay that does not match the class
// (Python's Adam can have it; in libtorch it is AdamW). One Error lists all faults.
NamedState from_python_state(const NamedState& python, torch::optim::Optimizer& optimizer,
                             const ParameterNames& names);

}  // namespace accelerant::optim
