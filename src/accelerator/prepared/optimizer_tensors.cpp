#include "accelerator/prepared/optimizer_tensors.h"

#include <ATen/ops/_foreach_mul.h>

#include <cstdint>
#include <map>
#include <string>

#include "accelerator/fingerprint.h"
#include "optim/optimizer_kinds.h"

namespace accelerant::detail {
namespace {

void move(at::Tensor& tensor, c10::Device device) {
  if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device);
}

void move_field(const optim::detail::Field& field, c10::Device device) {
  if (auto* const tensor = field.as<at::Tensor>()) move(*tensor, device);
  if (auto* const list = field.as<optim::detail::TensorList>()) {
    for (at::Tensor& tensor : *list) move(tensor, device);
  }
  if (auto* const list = field.as<optim::detail::ScratchList>(); list && list->has_value()) {
    for (at::Tensor& tensor : **list) move(tensor, device);
  }
}

void move_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                   c10::Device device) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || found->second == nullptr) return;
  for (const auto& field : optim::detail::fields_of(*found->second)) move_field(field, device);
}

}  // namespace

std::size_t fingerprint_of_parameters(torch::optim::Optimizer& optimizer) {
  std::size_t fingerprint = 1;
  for_each_parameter(optimizer, [&](const at::Tensor& parameter) {
    mix(fingerprint, reinterpret_cast<std::uintptr_t>(parameter.unsafeGetTensorImpl()));
  });
  return fingerprint;
}

std::size_t fingerprint_of_gradients(torch::optim::Optimizer& optimizer) {
  std::size_t fingerprint = 0;
  for_each_parameter(optimizer,
                     [&](const at::Tensor& parameter) { mix_gradient(fingerprint, parameter); });
  return fingerprint;
}

bool has_gradients(torch::optim::Optimizer& optimizer) {
  return any_parameter(optimizer,
                       [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

// libtorch's zero_grad detaches gradients even when it drops them, which fails for gradients that
// are views of exchange buffers.
void clear_gradients(torch::optim::Optimizer& optimizer, bool set_to_none) {
  for_each_parameter(optimizer, [&](at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) return;
    if (set_to_none) {
      gradient.reset();
    } else {
      if (gradient.grad_fn()) gradient.detach_();
      gradient.requires_grad_(false);
      gradient.zero_();
    }
  });
}

void multiply(const std::vector<at::Tensor>& gradients, const Correction& correction) {
  std::map<std::string, std::vector<at::Tensor>> dense;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.is_sparse()) {
      if (correction.device_factor.defined()) {
        gradient.mul_(correction.device_factor.to(gradient.device()));
      } else {
        gradient.mul_(correction.factor);
      }
    } else {
      dense[gradient.device().str()].push_back(gradient);
    }
  }
  for (const auto& [device, list] : dense) {
    if (correction.device_factor.defined()) {
      at::_foreach_mul_(list, correction.device_factor.to(list.front().device()));
    } else {
      at::_foreach_mul_(list, correction.factor);
    }
  }
}

void move_state_to_parameters(torch::optim::Optimizer& optimizer) {
  for_each_parameter(optimizer, [&](const at::Tensor& parameter) {
    move_state_of(optimizer, parameter, parameter.device());
  });
}

void move_state_to(c10::Device device, torch::optim::Optimizer& optimizer) {
  for_each_parameter(
      optimizer, [&](const at::Tensor& parameter) { move_state_of(optimizer, parameter, device); });
}

}  // namespace accelerant::detail
