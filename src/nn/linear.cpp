#include "accelerant/nn/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <ostream>

#include "nn/mixed_linear.h"

namespace accelerant::nn {

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  if (const auto type = type_of_mixed_linear(input, weight, bias)) {
    return mixed_linear(input, weight, bias, *type);
  }
  return at::linear(input, weight, bias);
}

// The inherited clone() would make a torch::nn::Linear.
std::shared_ptr<torch::nn::Module> LinearImpl::clone(
    const std::optional<c10::Device>& device) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<LinearImpl>(options);
  const auto copy_data = [&](const at::Tensor& from, at::Tensor& to) {
    if (from.defined())
      to.set_data(device ? from.to(*device, /*non_blocking=*/false, /*copy=*/true) : from.clone());
  };
  copy_data(weight, copy->weight);
  copy_data(bias, copy->bias);
  copy->train(is_training());
  return copy;
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "accelerant::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ")";
}

}  // namespace accelerant::nn
