#include "accelerant/optim/clip_grad.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "accelerant/core/error.h"
#include "amp/unscale.h"

namespace accelerant {
namespace {

// Tensors of one device and type, for which the foreach operators are fast.
struct Group {
  std::vector<at::Tensor> tensors;
  bool holds(const at::Tensor& tensor) const {
    return tensors[0].device() == tensor.device() && tensors[0].dtype() == tensor.dtype();
  }
};

std::vector<Group> group_by_device_and_type(at::TensorList tensors) {
  std::vector<Group> groups;
  for (const at::Tensor& tensor : tensors) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& known) { return known.holds(tensor); });
    if (group == groups.end()) group = groups.insert(group, Group{});
    group->tensors.push_back(tensor);
  }
  return groups;
}

// The elements of all gradients. A sparse gradient is coalesced, so that each element counts once.
std::vector<at::Tensor> gradient_elements(at::TensorList parameters) {
  std::vector<at::Tensor> elements;
  elements.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
    elements.push_back(gradient.is_sparse() ? gradient._values() : gradient);
  }
  return elements;
}

void require_limit(double limit, const char* name) {
  if (limit >= 0.0) return;
  throw Error(ErrorDetails{.problem = c10::str(name, " is out of range"),
                           .expected = "0 or more",
                           .got = c10::str(limit),
                           .hint = "a negative limit would reverse the gradients"});
}

// Formatted like a Python float, because the number is part of PyTorch's text.
std::string python_float(double value) {
  const std::string text = c10::str(value);
  const bool looks_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_whole ? text + ".0" : text;
}

void require_finite(const at::Tensor& total_norm, double norm_type) {
  if (std::isfinite(total_norm.item<double>())) return;
  throw Error(
      c10::str("The total norm of order ", python_float(norm_type),
               " for gradients from `parameters` is non-finite, so it cannot be clipped. To "
               "disable this error and scale the gradients by the non-finite norm anyway, "
               "set `error_if_nonfinite=False`"));
}

// Multiplies tensors of one group by a zero-dimensional factor. The foreach operators round the
// factor to the type of the tensors, which would lose a small one in float16. The scaler's kernel
// keeps it in float32, and writes nothing if it is 1.
void multiply_(const Group& group, const at::Tensor& factor) {
  const c10::Device device = group.tensors[0].device();
  const at::ScalarType type = group.tensors[0].scalar_type();
  const bool is_16_bit = type == at::kHalf || type == at::kBFloat16;
  if (is_16_bit || (type == at::kFloat && detail::has_kernels(device))) {
    const auto flag_options = at::TensorOptions().device(device).dtype(at::kFloat);
    non_finite_check_and_unscale_(group.tensors, at::empty({}, flag_options),
                                  factor.to(flag_options));
  } else {
    at::_foreach_mul_(group.tensors, factor.to(device));
  }
}

void scale_to_norm(const std::vector<at::Tensor>& gradients, double max_norm,
                   const at::Tensor& total_norm) {
  // Always multiply: checking first whether it is needed would wait for the device.
  const at::Tensor factor = total_norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const Group& group : group_by_device_and_type(gradients)) multiply_(group, factor);
}

}  // namespace

at::Tensor get_total_norm(at::TensorList tensors, const NormOptions& options) {
  const at::NoGradGuard no_grad;
  if (tensors.empty()) return at::zeros({});
  std::vector<at::Tensor> norms;
  norms.reserve(tensors.size());
  for (const Group& group : group_by_device_and_type(tensors)) {
    const at::ScalarType type = group.tensors[0].scalar_type();
    const bool is_16_bit = type == at::kHalf || type == at::kBFloat16;
    const std::vector<at::Tensor> group_norms = at::_foreach_norm(
        group.tensors, options.norm_type, is_16_bit ? std::optional(at::kFloat) : std::nullopt);
    for (const at::Tensor& norm : group_norms) {
      const bool here = norm.device() == tensors[0].device();
      norms.push_back(here ? norm : norm.to(tensors[0].device()));
    }
  }
  const bool any_double = std::any_of(norms.begin(), norms.end(), [](const at::Tensor& norm) {
    return norm.scalar_type() == at::kDouble;
  });
  if (any_double) {
    for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
  }
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), options.norm_type);
  if (options.error_if_nonfinite) require_finite(total, options.norm_type);
  return total;
}

void clip_grads_with_norm_(at::TensorList parameters, double max_norm,
                           const at::Tensor& total_norm) {
  require_limit(max_norm, "max_norm");
  const at::NoGradGuard no_grad;
  scale_to_norm(gradient_elements(parameters), max_norm, total_norm);
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, const NormOptions& options) {
  require_limit(max_norm, "max_norm");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradient_elements(parameters);
  at::Tensor total_norm = get_total_norm(gradients, options);
  scale_to_norm(gradients, max_norm, total_norm);
  return total_norm;
}

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  require_limit(clip_value, "clip_value");
  const at::NoGradGuard no_grad;
  for (const Group& group : group_by_device_and_type(gradient_elements(parameters))) {
    at::_foreach_clamp_min_(group.tensors, -clip_value);
    at::_foreach_clamp_max_(group.tensors, clip_value);
  }
}

}  // namespace accelerant
