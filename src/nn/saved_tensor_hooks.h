// Hooks on what autograd saves for backward. In Python these are
// torch.autograd.graph.saved_tensors_hooks; libtorch has the mechanism, but only its Python engine
// can set them.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace accelerant::nn {

// Creates the hooks of each saved tensor.
class SavedTensorHookSource {
 public:
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

 protected:
  ~SavedTensorHookSource() = default;
};

// Sets the source of the calling thread and returns the previous one (nullptr: none). The first
// call gives libtorch an autograd engine that asks for hooks; throws Error if the process has an
// engine other than libtorch's own.
SavedTensorHookSource* exchange_hook_source(SavedTensorHookSource* source);

// Whether the calling thread has one.
bool has_hook_source();

}  // namespace accelerant::nn
