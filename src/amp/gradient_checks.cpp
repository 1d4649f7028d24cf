#include "amp/gradient_checks.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "accelerant/core/error.h"
#include "compat/device.h"
#include "kernels/amp_kernels.h"

namespace accelerant::detail {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

// The memory of a check, in floats: the flag (two, for alignment), then the counts of both rounds.
constexpr int64_t kFlagFloats = 2;
constexpr int64_t kCountFloats = sizeof(kernels::NonFiniteCount) / sizeof(float);
constexpr int kRounds = 2;

// The strided tensor that holds the elements of a parameter's gradient.
at::Tensor elements_of_gradient(at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.is_sparse()) return gradient;
  // Duplicate indices will be summed eventually. In float16 the sum may overflow, so sum them now.
  if (gradient.scalar_type() == at::kHalf && !gradient.is_coalesced()) {
    gradient = gradient.coalesce();
  }
  return gradient._values();
}

bool same_tensor(const WeakTensor& left, const WeakTensor& right) {
  return left._unsafe_get_target() == right._unsafe_get_target();
}

CheckedParameter checked(const CheckedGradient& gradient) {
  const WeakTensor parameter(gradient.parameter.getIntrusivePtr());
  return {.parameter = parameter,
          .gradient = parameter,
          .group = gradient.group,
          .index = gradient.index};
}

bool same_gradient(const CheckedParameter& left, const CheckedParameter& right) {
  return same_tensor(left.parameter, right.parameter) && same_tensor(left.gradient, right.gradient);
}

}  // namespace

// The gradients of one device before a check.
struct GradientChecks::Gradients {
  c10::Device device;
  std::vector<at::Tensor> elements;  // strided; for sparse gradients, their values
  std::vector<CheckedParameter> parameters;
};

std::vector<GradientChecks::Gradients> GradientChecks::collect(torch::optim::Optimizer& optimizer,
                                                               Float16Gradients float16) {
  std::vector<Gradients> devices;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    std::vector<at::Tensor>& parameters = optimizer.param_groups()[group].params();
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      at::Tensor& parameter = parameters[index];
      if (!parameter.grad().defined()) continue;
      if (float16 == Float16Gradients::refused && parameter.grad().scalar_type() == at::kHalf) {
        throw Error("Attempting to unscale FP16 gradients.",
                    c10::str("group ", group, " parameter ", index,
                             " is float16; keep parameters in float32 and let AutocastGuard cast, "
                             "or use an AmpOptimizer"));
      }
      at::Tensor elements = elements_of_gradient(parameter);
      auto entry = std::find_if(devices.begin(), devices.end(), [&](const Gradients& known) {
        return known.device == elements.device();
      });
      if (entry == devices.end()) {
        entry = devices.insert(entry, Gradients{elements.device(), {}, {}});
      }
      entry->parameters.push_back({.parameter = WeakTensor(parameter.getIntrusivePtr()),
                                   .gradient = WeakTensor(parameter.grad().getIntrusivePtr()),
                                   .gradient_version = elements._version(),
                                   .group = group,
                                   .index = index});
      entry->elements.push_back(std::move(elements));
    }
  }
  return devices;
}

Counts GradientChecks::DeviceCheck::counts(int round) const {
  const auto rows = static_cast<int64_t>(parameters.size());
  return {.memory = memory, .offset = kFlagFloats + round * rows * kCountFloats};
}

GradientChecks::DeviceCheck GradientChecks::start(Gradients& gradients) {
  const auto rows = static_cast<int64_t>(gradients.elements.size());
  at::Tensor memory = at::zeros({kFlagFloats + kRounds * rows * kCountFloats},
                                at::TensorOptions().dtype(at::kFloat).device(gradients.device));
  return {.found_inf = memory.select(0, 0),
          .parameters = std::move(gradients.parameters),
          .memory = std::move(memory)};
}

void GradientChecks::check(DeviceCheck& check, int round, const std::vector<at::Tensor>& gradients,
                           const at::Tensor& inv_scale, kernels::Writing writing) {
  unscale_and_count_(gradients, copy_to(inv_scale, check.found_inf.device()), writing,
                     check.found_inf, check.counts(round));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    check.parameters[i].gradient_version = gradients[i]._version();
  }
}

void GradientChecks::run(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                         kernels::Writing writing, Float16Gradients float16) {
  std::vector<DeviceCheck> checks;
  for (Gradients& gradients : collect(optimizer, float16)) {
    checks.push_back(start(gradients));
    check(checks.back(), /*round=*/0, gradients.elements, inv_scale, writing);
  }
  devices_ = std::move(checks);
}

void GradientChecks::run_on_changed(torch::optim::Optimizer& optimizer, const at::Tensor& one) {
  for (Gradients& gradients : collect(optimizer, Float16Gradients::allowed)) {
    const auto known = std::find_if(
        devices_.begin(), devices_.end(),
        [&](const DeviceCheck& first) { return first.found_inf.device() == gradients.device; });
    const bool in_place =
        known != devices_.end() &&
        std::equal(known->parameters.begin(), known->parameters.end(), gradients.parameters.begin(),
                   gradients.parameters.end(), same_gradient);
    if (!in_place) {
      DeviceCheck later = start(gradients);
      if (known == devices_.end()) {
        devices_.push_back(later);
      } else {
        later.found_inf = known->found_inf;  // still one flag per device
      }
      check(later, /*round=*/0, gradients.elements, one, kernels::Writing::nothing);
      replaced_.push_back(std::move(later));
      continue;
    }
    const bool unchanged =
        std::equal(known->parameters.begin(), known->parameters.end(), gradients.parameters.begin(),
                   [](const CheckedParameter& then, const CheckedParameter& now) {
                     return then.gradient_version == now.gradient_version;
                   });
    if (unchanged) continue;
    check(*known, /*round=*/1, gradients.elements, one, kernels::Writing::nothing);
  }
}

void GradientChecks::adopt(ScaledStep::Checked checked) { adopted_ = std::move(checked); }

std::vector<at::Tensor> GradientChecks::flags() const {
  std::vector<at::Tensor> flags;
  flags.reserve(devices_.size() + 1);
  if (adopted_.gradients) flags.push_back(adopted_.found_inf);
  for (const DeviceCheck& check : devices_) flags.push_back(check.found_inf);
  return flags;
}

std::optional<CheckedParameter> GradientChecks::find_any(
    const std::unordered_set<const c10::TensorImpl*>& parameters) const {
  for (const DeviceCheck& check : devices_) {
    for (const CheckedParameter& checked : check.parameters) {
      if (parameters.contains(checked.parameter._unsafe_get_target())) return checked;
    }
  }
  if (!adopted_.gradients) return std::nullopt;
  for (const CheckedGradient& gradient : adopted_.gradients->parameters()) {
    if (parameters.contains(gradient.parameter.unsafeGetTensorImpl())) return checked(gradient);
  }
  return std::nullopt;
}

std::vector<NonFiniteParameter> GradientChecks::non_finite(const DeviceCheck& check, int round) {
  const at::Tensor rows =
      check.counts(round).rows(static_cast<int64_t>(check.parameters.size())).cpu();
  const auto* count = rows.const_data_ptr<int64_t>();
  std::vector<NonFiniteParameter> found;
  for (const CheckedParameter& checked : check.parameters) {
    const int64_t inf_count = *count++;
    const int64_t nan_count = *count++;
    if (inf_count + nan_count > 0) found.push_back({checked, inf_count, nan_count});
  }
  return found;
}

std::vector<NonFiniteParameter> GradientChecks::non_finite_parameters() const {
  std::vector<NonFiniteParameter> found;
  const auto add = [&](const DeviceCheck& check, int round) {
    std::vector<NonFiniteParameter> more = non_finite(check, round);
    std::move(more.begin(), more.end(), std::back_inserter(found));
  };
  if (adopted_.gradients) {
    for (const CheckedGradient& gradient : adopted_.gradients->non_finite()) {
      found.push_back({checked(gradient), gradient.inf_count, gradient.nan_count});
    }
  }
  for (const DeviceCheck& check : devices_) add(check, /*round=*/0);
  // A nan in the first round makes every clipped gradient nan: later rounds would blame unaffected
  // parameters.
  if (!found.empty()) return found;
  for (const DeviceCheck& check : devices_) add(check, /*round=*/1);
  for (const DeviceCheck& check : replaced_) add(check, /*round=*/0);
  return found;
}

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

void count_flag(const at::Tensor& count, const at::Tensor& flag) {
#if defined(ACCELERANT_WITH_CUDA)
  if (flag.is_cuda() && flag.scalar_type() == at::kFloat && count.device() == flag.device()) {
    const c10::OptionalDeviceGuard guard(flag.device());
    kernels::cuda::count_flag(count.mutable_data_ptr<int64_t>(), flag.const_data_ptr<float>(),
                              compat::current_cuda_stream(flag.device()));
    return;
  }
#endif
  count.add_(flag.ne(0));
}

at::Tensor any_found(const std::vector<at::Tensor>& flags, c10::Device device) {
  if (flags.size() == 1 && flags[0].device() == device) return flags[0];
  std::vector<at::Tensor> here;
  here.reserve(flags.size());
  for (const at::Tensor& flag : flags) here.push_back(copy_to(flag, device));
  return at::stack(here).ne(0).any().to(at::kFloat);
}

}  // namespace accelerant::detail
