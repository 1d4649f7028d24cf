#include "tensor/module_state.h"

#include <torch/nn/module.h>

namespace accelerant {
namespace {

void collect(const torch::nn::Module& module, const std::string& prefix, StateDict& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    state.insert(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    state.insert(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", state);
  }
}

}  // namespace

StateDict state_of(const torch::nn::Module& module) {
  StateDict state;
  collect(module, "", state);
  return state;
}

}  // namespace accelerant
