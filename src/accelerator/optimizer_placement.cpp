#include "accelerator/optimizer_placement.h"

#include <torch/optim/optimizer.h>

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

}  // namespace

void move_state_to_parameters(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr) continue;
      for (const auto& field : optim::detail::fields_of(*found->second)) {
        move_field(field, parameter.device());
      }
    }
  }
}

}  // namespace accelerant::detail
