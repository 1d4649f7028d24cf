#include "nn/fused_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "amp/unscale.h"
#include "compat/device.h"
#include "kernels/cross_entropy.h"

namespace accelerant::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the first pass keeps for the second.
struct Losses {
  at::Tensor loss = {};        // per row, or reduced
  at::Tensor statistics = {};  // one kernels::RowStatistics per row
  at::Tensor factor = {};      // of each row in the reduced loss; undefined without reduction
};

#if defined(ACCELERANT_WITH_CUDA)

kernels::LogitRows rows_of(const at::Tensor& logits) {
  return {.data = logits.const_data_ptr(),
          .kind = accelerant::detail::scalar_kind(logits.scalar_type()),
          .stride = logits.stride(0),
          .rows = logits.size(0),
          .classes = static_cast<int32_t>(logits.size(1))};
}

kernels::ClassTargets classes_of(const at::Tensor& targets, const CrossEntropyRules& rules) {
  return {.classes = targets.const_data_ptr<int64_t>(),
          .ignore_index = rules.ignore_index,
          .label_smoothing = rules.label_smoothing};
}

Losses compute_losses(const at::Tensor& logits, const at::Tensor& targets,
                      const CrossEntropyRules& rules) {
  const c10::OptionalDeviceGuard guard(logits.device());
  void* const stream = compat::current_cuda_stream(logits.device());
  const auto options = logits.options().dtype(at::kFloat);
  const int64_t rows = logits.size(0);
  const auto classes = classes_of(targets, rules);
  const at::Tensor losses = at::empty({rows}, options);
  Losses made{.loss = losses, .statistics = at::empty({rows, 2}, options)};
  static_assert(sizeof(kernels::RowStatistics) == 2 * sizeof(float));
  kernels::cuda::cross_entropy(
      rows_of(logits), classes,
      static_cast<kernels::RowStatistics*>(made.statistics.mutable_data_ptr()),
      losses.mutable_data_ptr<float>(), stream);
  if (rules.reduction == at::Reduction::None) return made;
  made.loss = at::empty({}, options);
  made.factor = at::empty({}, options);
  kernels::cuda::reduce_losses(losses.const_data_ptr<float>(), rows, classes,
                               rules.reduction == at::Reduction::Mean ? kernels::LossReduction::mean
                                                                      : kernels::LossReduction::sum,
                               made.loss.mutable_data_ptr<float>(),
                               made.factor.mutable_data_ptr<float>(), stream);
  return made;
}

at::Tensor compute_gradient(const at::Tensor& logits, const at::Tensor& targets,
                            const CrossEntropyRules& rules, const at::Tensor& statistics,
                            const at::Tensor& factor, const at::Tensor& of_loss) {
  const c10::OptionalDeviceGuard guard(logits.device());
  at::Tensor gradient = at::empty(logits.sizes(), logits.options());
  kernels::cuda::cross_entropy_backward(
      rows_of(logits), classes_of(targets, rules),
      static_cast<const kernels::RowStatistics*>(statistics.const_data_ptr()),
      {.upstream = of_loss.const_data_ptr<float>(),
       .stride = of_loss.dim() == 0 ? 0 : of_loss.stride(0),
       .factor = factor.defined() ? factor.const_data_ptr<float>() : nullptr},
      gradient.mutable_data_ptr(), compat::current_cuda_stream(logits.device()));
  return gradient;
}

#else  // can_fuse_cross_entropy() is false for all devices

Losses compute_losses(const at::Tensor&, const at::Tensor&, const CrossEntropyRules&) { return {}; }

at::Tensor compute_gradient(const at::Tensor&, const at::Tensor&, const CrossEntropyRules&,
                            const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return {};
}

#endif

struct FusedCrossEntropy : torch::autograd::Function<FusedCrossEntropy> {
  static constexpr std::size_t kArguments = 5;  // of forward()

  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, int64_t ignore_index, double label_smoothing,
                            int64_t reduction) {
    context->set_materialize_grads(false);
    context->saved_data["ignore_index"] = ignore_index;
    context->saved_data["label_smoothing"] = label_smoothing;
    context->saved_data["reduction"] = reduction;
    Losses made = compute_losses(logits, targets, rules_of(*context));
    context->save_for_backward({logits, targets, made.statistics, made.factor});
    return made.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(kArguments);
    const at::Tensor& of_loss = gradients[0];
    if (!of_loss.defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const auto& [logits, targets, statistics, factor] =
        std::tie(saved[0], saved[1], saved[2], saved[3]);
    const CrossEntropyRules rules = rules_of(*context);
    if (at::GradMode::is_enabled()) {
      result[0] = cross_entropy_gradient(logits, targets, rules,
                                         factor.defined() ? of_loss * factor : of_loss);
    } else {
      result[0] = compute_gradient(logits, targets, rules, statistics, factor, of_loss);
    }
    return result;
  }

 private:
  static CrossEntropyRules rules_of(const AutogradContext& context) {
    return {.ignore_index = context.saved_data.at("ignore_index").toInt(),
            .label_smoothing = context.saved_data.at("label_smoothing").toDouble(),
            .reduction = context.saved_data.at("reduction").toInt()};
  }
};

bool has_type_of_kernels(const at::Tensor& logits) {
  const at::ScalarType type = logits.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

}  // namespace

bool can_fuse_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                            const CrossEntropyRules& rules) {
  constexpr int64_t kMost = 1 << 30;  // limit for what the kernels count in int32
  return logits.is_cuda() && accelerant::detail::has_kernels(logits.device()) &&
         logits.layout() == at::kStrided && has_type_of_kernels(logits) && logits.dim() == 2 &&
         logits.numel() > 0 && logits.size(0) <= kMost && logits.size(1) <= kMost &&
         targets.device() == logits.device() && targets.layout() == at::kStrided &&
         targets.scalar_type() == at::kLong && targets.dim() == 1 &&
         targets.size(0) == logits.size(0) && rules.label_smoothing >= 0.0 &&
         rules.label_smoothing <= 1.0;
}

at::Tensor fused_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                               const CrossEntropyRules& rules) {
  const bool has_whole_rows = logits.stride(1) == 1 || logits.size(1) == 1;
  return FusedCrossEntropy::apply(has_whole_rows ? logits : logits.contiguous(),
                                  targets.contiguous(), rules.ignore_index, rules.label_smoothing,
                                  rules.reduction);
}

at::Tensor cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyRules& rules, const at::Tensor& of_rows) {
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  const auto classes = static_cast<double>(logits.size(1));
  const at::Tensor is_counted = targets.ne(rules.ignore_index);
  const at::Tensor probabilities = at::softmax(logits.to(at::kFloat), 1);
  const at::Tensor wanted =
      at::zeros_like(probabilities.detach())
          .scatter_(1, targets.where(is_counted, 0).unsqueeze(1), 1.0 - rules.label_smoothing)
          .add_(rules.label_smoothing / classes);
  // Masked before the product and after it: both may be non-finite.
  const at::Tensor counts = is_counted.unsqueeze(1);
  const at::Tensor of_counted = of_rows.unsqueeze(-1).where(counts, 0.0);
  const at::Tensor gradient = ((probabilities - wanted) * of_counted).where(counts, 0.0);
  return gradient.to(logits.scalar_type());
}

}  // namespace accelerant::nn
