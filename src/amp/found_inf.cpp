#include "amp/found_inf.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "amp/unscale.h"

namespace accelerant::detail {
namespace {

// Gradients of one device on their way to a check.
struct DeviceGradients {
  c10::Device device;
  std::vector<at::Tensor> gradients;  // strided: for sparse gradients their values
  std::vector<at::Tensor> owners;     // the .grad each belongs to
  std::vector<CheckedParameter> parameters;
};

// The strided tensor that holds the elements of a parameter's gradient.
at::Tensor elements_of_gradient(at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.is_sparse()) return gradient;
  // Duplicate indices are summed some day; in float16 the sum may overflow, so sum now.
  if (gradient.scalar_type() == at::kHalf && !gradient.is_coalesced()) {
    gradient = gradient.coalesce();
  }
  return gradient._values();
}

std::vector<DeviceGradients> collect_gradients(torch::optim::Optimizer& optimizer,
                                               Float16Gradients float16) {
  std::vector<DeviceGradients> devices;
  std::size_t group_number = 0;
  for (auto& group : optimizer.param_groups()) {
    std::size_t index = 0;
    for (at::Tensor& parameter : group.params()) {
      const std::size_t place = index++;
      if (!parameter.grad().defined()) continue;
      if (float16 == Float16Gradients::refused && parameter.grad().scalar_type() == at::kHalf) {
        throw Error("Attempting to unscale FP16 gradients.");
      }
      const at::Tensor elements = elements_of_gradient(parameter);
      auto entry = std::find_if(devices.begin(), devices.end(), [&](const DeviceGradients& known) {
        return known.device == elements.device();
      });
      if (entry == devices.end()) {
        entry = devices.insert(entry, DeviceGradients{elements.device(), {}, {}, {}});
      }
      entry->gradients.push_back(elements);
      entry->owners.push_back(parameter.grad());
      entry->parameters.push_back(
          {.parameter = c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
           .group = group_number,
           .index = place,
           .gradient = parameter.grad().unsafeGetTensorImpl()});
    }
    ++group_number;
  }
  return devices;
}

uint32_t version_of(const at::Tensor& gradient) {
  // Writing the values of a sparse gradient leaves the version of the gradient itself alone.
  return static_cast<uint32_t>(gradient.is_sparse() ? gradient._values()._version()
                                                    : gradient._version());
}

}  // namespace

std::vector<DeviceCheck> unscale_gradients(torch::optim::Optimizer& optimizer,
                                           const at::Tensor& inv_scale, Float16Gradients float16) {
  std::vector<DeviceCheck> checks;
  for (DeviceGradients& device : collect_gradients(optimizer, float16)) {
    const auto rows = static_cast<int64_t>(device.gradients.size());
    // The flag and the counts share one block, so that one fill clears both.
    const at::Tensor block =
        at::zeros({1 + 2 * rows}, at::TensorOptions().dtype(at::kLong).device(device.device));
    DeviceCheck check{.found_inf = block.narrow(0, 0, 1).view(at::kFloat).select(0, 0),
                      .counts = block.narrow(0, 1, 2 * rows).view({rows, 2}),
                      .parameters = std::move(device.parameters)};
    unscale_and_count_(device.gradients, check.found_inf,
                       copy_to(inv_scale, device.device), check.counts);
    for (std::size_t i = 0; i < check.parameters.size(); ++i) {
      check.parameters[i].gradient_version = version_of(device.owners[i]);
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

bool gradients_changed_since(torch::optim::Optimizer& optimizer,
                             const std::vector<DeviceCheck>& checks) {
  // The checks were made on the same walk over the parameters, so both are read side by side.
  std::vector<std::size_t> next_row(checks.size(), 0);
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const auto check = std::find_if(checks.begin(), checks.end(), [&](const DeviceCheck& known) {
        return known.found_inf.device() == gradient.device();
      });
      if (check == checks.end()) return true;
      const std::size_t row = next_row[static_cast<std::size_t>(check - checks.begin())]++;
      if (row >= check->parameters.size()) return true;
      const CheckedParameter& known = check->parameters[row];
      if (known.parameter._unsafe_get_target() != parameter.unsafeGetTensorImpl() ||
          known.gradient != gradient.unsafeGetTensorImpl() ||
          known.gradient_version != version_of(gradient)) {
        return true;
      }
    }
  }
  return false;
}

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

at::Tensor any_found(const std::vector<at::Tensor>& flags, c10::Device device) {
  if (flags.size() == 1 && flags[0].device() == device) return flags[0];
  std::vector<at::Tensor> here;
  here.reserve(flags.size());
  for (const at::Tensor& flag : flags) here.push_back(copy_to(flag, device));
  return at::stack(here).ne(0).any().to(at::kFloat);
}

}  // namespace accelerant::detail
