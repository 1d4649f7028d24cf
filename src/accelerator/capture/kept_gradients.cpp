#include "accelerator/capture/kept_gradients.h"

#include <ATen/core/grad_mode.h>

#include "accelerator/core.h"

namespace accelerant::detail {

void KeptGradients::keep_present(const Core& core) {
  core.any_parameter([&](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined()) {
      kept_.insert_or_assign(parameter.unsafeGetTensorImpl(), Kept{parameter, gradient});
    }
    return false;
  });
}

void KeptGradients::attach() const {
  const at::NoGradGuard no_grad;
  for (const auto& [key, kept] : kept_) {
    at::Tensor parameter = kept.parameter;
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.is_same(kept.gradient)) continue;
    if (gradient.defined()) {
      kept.gradient.copy_(gradient);
    } else {
      kept.gradient.zero_();
    }
    gradient = kept.gradient;
  }
}

void KeptGradients::put_back(const Core& core) const {
  core.any_parameter([&](at::Tensor parameter) {
    const auto kept = kept_.find(parameter.unsafeGetTensorImpl());
    if (kept == kept_.end()) {
      parameter.mutable_grad().reset();
    } else {
      parameter.mutable_grad() = kept->second.gradient;
    }
    return false;
  });
}

bool KeptGradients::are_all_there(const Core& core) const {
  return !core.any_parameter([&](const at::Tensor& parameter) {
    const auto kept = kept_.find(parameter.unsafeGetTensorImpl());
    if (kept == kept_.end()) return parameter.grad().defined();
    return !parameter.grad().is_same(kept->second.gradient);
  });
}

std::vector<at::Tensor> KeptGradients::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [key, kept] : kept_) tensors.push_back(kept.gradient);
  return tensors;
}

bool has_any_gradient(const Core& core) {
  return core.any_parameter([](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

void drop_all_gradients(const Core& core) {
  core.any_parameter([](at::Tensor parameter) {
    parameter.mutable_grad().reset();
    return false;
  });
}

}  // namespace accelerant::detail
