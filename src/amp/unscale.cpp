#include "amp/unscale.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <c10/core/DeviceGuard.h>

#include <array>
#include <vector>

#include "accelerant/core/error.h"
#include "compat/device.h"
#include "kernels/amp_kernels.h"
#include "kernels/cpu/unscale.h"

namespace accelerant {
namespace detail {
namespace {

void require_unscalable(const at::Tensor& gradient) {
  switch (gradient.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      break;
    default:
      throw Error(ErrorDetails{
          .problem = "Gradients of this type cannot be unscaled",
          .expected = "Half, BFloat16, Float or Double",
          .got = c10::toString(gradient.scalar_type()),
          .hint = "keep such parameters out of the optimizer, or step it without a scaler"});
  }
  if (gradient.layout() != at::kStrided) {
    throw Error(ErrorDetails{.problem = "Gradients of this layout cannot be unscaled",
                             .expected = "a strided or sparse COO gradient",
                             .got = c10::str(gradient.layout()),
                             .hint = "convert the gradient with to_dense() before unscaling"});
  }
  at::assert_no_internal_overlap(gradient);
}

kernels::NonFiniteCount* pointer_to(const Counts& counts) {
  if (!counts.memory.defined()) return nullptr;
  return reinterpret_cast<kernels::NonFiniteCount*>(counts.memory.mutable_data_ptr<float>() +
                                                    counts.offset);
}

void unscale_on_cpu(at::TensorList gradients, const at::Tensor& inv_scale, kernels::Writing writing,
                    const at::Tensor& found_inf, kernels::NonFiniteCount* counts) {
  const float factor = *inv_scale.const_data_ptr<float>();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const kernels::NonFiniteCount count = kernels::cpu::unscale(gradients[i], factor, writing);
    if (count.inf + count.nan == 0) continue;
    *found_inf.mutable_data_ptr<float>() = 1.0F;
    if (counts == nullptr) continue;
    counts[i].inf += count.inf;
    counts[i].nan += count.nan;
  }
}

#if defined(ACCELERANT_WITH_CUDA)
void unscale_on_cuda(at::TensorList gradients, const at::Tensor& inv_scale,
                     kernels::Writing writing, const at::Tensor& found_inf,
                     kernels::NonFiniteCount* counts) {
  const c10::Device device = found_inf.device();
  const c10::OptionalDeviceGuard guard(device);
  std::vector<std::pair<at::Tensor, at::Tensor>> packed;  // non-dense gradients and copies
  std::array<std::vector<kernels::GradientSpan>, 4> spans_by_kind;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor gradient = gradients[i];
    if (!gradient.is_non_overlapping_and_dense()) {
      packed.emplace_back(gradient, gradient.contiguous());
      gradient = packed.back().second;
    }
    spans_by_kind[static_cast<std::size_t>(scalar_kind(gradient.scalar_type()))].push_back(
        {.data = gradient.mutable_data_ptr(),
         .numel = gradient.numel(),
         .row = static_cast<int32_t>(i)});
  }
  for (std::size_t kind = 0; kind < spans_by_kind.size(); ++kind) {
    kernels::cuda::unscale(spans_by_kind[kind], static_cast<kernels::ScalarKind>(kind), writing,
                           inv_scale.const_data_ptr<float>(), found_inf.mutable_data_ptr<float>(),
                           counts, compat::current_cuda_stream(device));
  }
  if (writing == kernels::Writing::nothing) return;
  for (auto& [gradient, copy] : packed) gradient.copy_(copy);
}
#endif

}  // namespace

bool has_kernels(c10::Device device) {
#if defined(ACCELERANT_WITH_CUDA)
  if (device.is_cuda()) return true;
#endif
  return device.is_cpu();
}

kernels::ScalarKind scalar_kind(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return kernels::ScalarKind::float16;
    case at::kBFloat16:
      return kernels::ScalarKind::bfloat16;
    case at::kDouble:
      return kernels::ScalarKind::float64;
    default:
      return kernels::ScalarKind::float32;
  }
}

at::Tensor Counts::rows(int64_t count) const {
  constexpr int64_t floats = sizeof(kernels::NonFiniteCount) / sizeof(float);
  return memory.narrow(0, offset, count * floats).view(at::kLong).view({count, 2});
}

void unscale_and_count_by_aten_(at::TensorList gradients, const at::Tensor& inv_scale,
                                kernels::Writing writing, const at::Tensor& found_inf,
                                const Counts& counts) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    // Not mul_: it would round inv_scale to the type of the gradient first.
    at::Tensor result = gradient.scalar_type() == at::kDouble
                            ? gradient.mul(inv_scale)
                            : gradient.to(at::kFloat).mul(inv_scale);
    if (writing == kernels::Writing::unscaled_values) {
      gradient.copy_(result);
      result = gradient;
    }
    found_inf.masked_fill_(at::isfinite(result).logical_not().any(), 1.0);
    if (!counts.memory.defined()) continue;
    const at::Tensor row =
        counts.rows(static_cast<int64_t>(gradients.size())).select(0, static_cast<int64_t>(i));
    row.select(0, 0).add_(at::isinf(result).sum());
    row.select(0, 1).add_(at::isnan(result).sum());
  }
}

void unscale_and_count_(at::TensorList gradients, const at::Tensor& inv_scale,
                        kernels::Writing writing, const at::Tensor& found_inf,
                        const Counts& counts) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : gradients) require_unscalable(gradient);
  if (writing == kernels::Writing::unscaled_values) {
    // The kernels write memory without autograd noticing; bump versions so that stale saved tensors
    // are detected.
    for (const at::Tensor& gradient : gradients) gradient.unsafeGetTensorImpl()->bump_version();
  }
  if (found_inf.is_cpu()) {
    return unscale_on_cpu(gradients, inv_scale, writing, found_inf, pointer_to(counts));
  }
#if defined(ACCELERANT_WITH_CUDA)
  if (found_inf.is_cuda()) {
    return unscale_on_cuda(gradients, inv_scale, writing, found_inf, pointer_to(counts));
  }
#endif
  unscale_and_count_by_aten_(gradients, inv_scale, writing, found_inf, counts);
}

}  // namespace detail

namespace {

void require_flag(const at::Tensor& tensor, const char* name) {
  // Texts as in PyTorch.
  if (tensor.numel() != 1) throw Error(std::string(name) + " must be a 1-element tensor.");
  if (tensor.scalar_type() != at::kFloat)
    throw Error(std::string(name) + " must be a float tensor.");
}

}  // namespace

void non_finite_check_and_unscale_(at::TensorList gradients, const at::Tensor& found_inf,
                                   const at::Tensor& inv_scale) {
  if (gradients.empty()) return;
  require_flag(inv_scale, "inv_scale");
  require_flag(found_inf, "found_inf");
  if (inv_scale.device() != found_inf.device()) {
    throw Error(ErrorDetails{.problem = "inv_scale and found_inf must be on the same device",
                             .expected = found_inf.device().str(),
                             .got = inv_scale.device().str()});
  }
  for (const at::Tensor& gradient : gradients) {
    if (gradient.device() == found_inf.device()) continue;
    throw Error("scaled_grads must be on the same device.");
  }
  detail::unscale_and_count_(gradients, inv_scale, kernels::Writing::unscaled_values, found_inf,
                             /*counts=*/{});
}

}  // namespace accelerant
