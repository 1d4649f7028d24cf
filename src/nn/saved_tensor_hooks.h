// Hooks on what autograd saves for backward. In Python these are
// torch.autograd.graph.saved_tensors_hooks; libtorch has the mechanism, but only its Python engine
// has a way to set them.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace accelerant::nn {

// Makes the hooks of each tensor that is saved.
class SavedTensorHookSource {
 public:
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

 protected:
  ~SavedTensorHookSource() = default;
};

// Makes the source that of the calling thread, and returns the one before; nullptr: none. The first
// call gives libtorch an autograd engine that asks for hooks; an Error if the process has another
// engine than libtorch's own.
SavedTensorHookSource* exchange_hook_source(SavedTensorHookSource* source);

}  // namespace accelerant::nn
