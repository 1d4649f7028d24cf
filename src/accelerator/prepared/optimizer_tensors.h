// The tensors of an optimizer: its parameters, their gradients, and its state.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "accelerator/loop/accumulation.h"

namespace accelerant::detail {

// Calls f with every parameter until f returns true. Returns whether it did.
template <class F>
bool any_parameter(torch::optim::Optimizer& optimizer, F&& f) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (f(parameter)) return true;
    }
  }
  return false;
}

template <class F>
void for_each_parameter(torch::optim::Optimizer& optimizer, F&& f) {
  any_parameter(optimizer, [&](at::Tensor& parameter) {
    f(parameter);
    return false;
  });
}

// Changes when parameters are added, removed or replaced.
std::size_t fingerprint_of_parameters(torch::optim::Optimizer& optimizer);

// Changes when a gradient is added, removed or written to. 0 if there are no gradients.
std::size_t fingerprint_of_gradients(torch::optim::Optimizer& optimizer);

bool has_gradients(torch::optim::Optimizer& optimizer);

void clear_gradients(torch::optim::Optimizer& optimizer, bool set_to_none = true);

// Uses one call for all dense gradients of a device.
void multiply(const std::vector<at::Tensor>& gradients, const Correction& correction);

// An optimizer that has stepped, or one like Adagrad that creates its state at once, may hold
// tensors on the parameters' previous device. Only handles the optimizers of torch::optim.
void move_state_to_parameters(torch::optim::Optimizer& optimizer);
void move_state_to(c10::Device device, torch::optim::Optimizer& optimizer);

}  // namespace accelerant::detail
