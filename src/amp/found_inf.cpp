#include "amp/found_inf.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
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
        entry = devices.insert(entry, DeviceGradients{elements.device(), {}, {}});
      }
      entry->gradients.push_back(elements);
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

// The memory of a check, in floats: the flag (two, for alignment), the counts of the first check
// and those of a later one.
constexpr int64_t kFlagFloats = 2;
constexpr int64_t kCountFloats = sizeof(kernels::NonFiniteCount) / sizeof(float);

kernels::NonFiniteCount* counts_of(const DeviceCheck& check, int round) {
  float* const first = check.memory.mutable_data_ptr<float>() + kFlagFloats;
  return reinterpret_cast<kernels::NonFiniteCount*>(first) +
         static_cast<std::size_t>(round) * check.parameters.size();
}

// Runs a check and notes which versions of the gradients it saw.
void run_check(DeviceCheck& check, int round, const std::vector<at::Tensor>& gradients,
               const at::Tensor& inv_scale) {
  unscale_and_count_(gradients, check.found_inf, copy_to(inv_scale, check.found_inf.device()),
                     counts_of(check, round));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    check.parameters[i].gradient_version = gradients[i]._version();
  }
}

DeviceCheck make_check(DeviceGradients& device, const at::Tensor& inv_scale) {
  const auto rows = static_cast<int64_t>(device.gradients.size());
  const at::Tensor memory = at::zeros({kFlagFloats + 2 * rows * kCountFloats},
                                      at::TensorOptions().dtype(at::kFloat).device(device.device));
  DeviceCheck check{.found_inf = memory.select(0, 0),
                    .parameters = std::move(device.parameters),
                    .memory = memory};
  run_check(check, /*round=*/0, device.gradients, inv_scale);
  return check;
}

bool same_gradients(const DeviceGradients& device, const DeviceCheck& check) {
  return std::equal(
      device.parameters.begin(), device.parameters.end(), check.parameters.begin(),
      check.parameters.end(), [](const CheckedParameter& now, const CheckedParameter& then) {
        return now.gradient == then.gradient &&
               now.parameter._unsafe_get_target() == then.parameter._unsafe_get_target();
      });
}

bool any_written(const DeviceGradients& device, const DeviceCheck& check) {
  return !std::equal(device.gradients.begin(), device.gradients.end(), check.parameters.begin(),
                     [](const at::Tensor& gradient, const CheckedParameter& then) {
                       return gradient._version() == then.gradient_version;
                     });
}

}  // namespace

at::Tensor DeviceCheck::counts_on_host() const {
  const auto rows = static_cast<int64_t>(parameters.size());
  const at::Tensor rounds = memory.narrow(0, kFlagFloats, 2 * rows * kCountFloats)
                                .cpu()
                                .view(at::kLong)
                                .view({2, rows, 2});
  // What was bad at once is counted as it was then: clipping turns inf into nan.
  const at::Tensor clean_at_first = rounds[0].sum(1, /*keepdim=*/true).eq(0);
  return rounds[0].add(rounds[1].mul(clean_at_first)).contiguous();
}

std::vector<DeviceCheck> unscale_gradients(torch::optim::Optimizer& optimizer,
                                           const at::Tensor& inv_scale, Float16Gradients float16) {
  std::vector<DeviceCheck> checks;
  for (DeviceGradients& device : collect_gradients(optimizer, float16)) {
    checks.push_back(make_check(device, inv_scale));
  }
  return checks;
}

void check_changed_gradients(torch::optim::Optimizer& optimizer, const at::Tensor& one,
                             std::vector<DeviceCheck>& checks) {
  for (DeviceGradients& device : collect_gradients(optimizer, Float16Gradients::allowed)) {
    const auto known = std::find_if(checks.begin(), checks.end(), [&](const DeviceCheck& check) {
      return same_gradients(device, check);
    });
    if (known == checks.end()) {
      checks.push_back(make_check(device, one));  // replaced, added or removed
    } else if (any_written(device, *known)) {
      run_check(*known, /*round=*/1, device.gradients, one);
    }
  }
}

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
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
