#include "nn/mixed_linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

namespace accelerant::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_castable(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.layout() == at::kStrided &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

// Sums are computed in float32, and rounded only if the result has another type.
at::Tensor product(const at::Tensor& left, const at::Tensor& right, at::ScalarType type) {
  const bool writes_wide = left.is_cuda() && type == at::kFloat && left.scalar_type() != type;
  return writes_wide ? at::mm(left, right, type) : at::mm(left, right).to(type);
}

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

// Takes every tensor twice: as it is, and cast, with the history of the cast. Gradients go to the
// former; gradients that need gradients themselves go to the latter, on which they depend.
struct MixedLinear : torch::autograd::Function<MixedLinear> {
  // The arguments of forward(). Without a bias, the last two do not count as inputs, so they come
  // last.
  enum Argument : std::size_t {
    kInput,
    kWeight,
    kCastInput,
    kCastWeight,
    kBias,
    kCastBias,
    kCount
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& cast_input,
                            const at::Tensor& cast_weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& cast_bias) {
    // A layer that the loss does not depend on gets no gradients, instead of zeros.
    context->set_materialize_grads(false);
    const bool needs_weight = input.requires_grad();
    context->save_for_backward({cast_input, needs_weight ? cast_weight : at::Tensor()});
    context->saved_data["input_type"] = static_cast<int64_t>(input.scalar_type());
    context->saved_data["weight_type"] = static_cast<int64_t>(weight.scalar_type());
    if (bias) context->saved_data["bias_type"] = static_cast<int64_t>(bias->scalar_type());
    return at::linear(cast_input, cast_weight, cast_bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    if (!gradients[0].defined()) return variable_list(kCount);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor rows = as_rows(gradients[0]);
    return at::GradMode::is_enabled() ? differentiable(*context, rows, saved[0], saved[1])
                                      : direct(*context, rows, saved[0], saved[1]);
  }

 private:
  static bool has_bias(const AutogradContext& context) {
    return context.saved_data.count("bias_type") > 0;
  }

  static at::ScalarType type_of(const AutogradContext& context, const char* name) {
    return static_cast<at::ScalarType>(context.saved_data.at(name).toInt());
  }

  static variable_list direct(const AutogradContext& context, const at::Tensor& rows,
                              const at::Tensor& input, const at::Tensor& weight) {
    variable_list result(kCount);
    if (context.needs_input_grad(kInput)) {
      result[kInput] = product(rows, weight, type_of(context, "input_type")).view(input.sizes());
    }
    if (context.needs_input_grad(kWeight)) {
      result[kWeight] = product(rows.t(), as_rows(input), type_of(context, "weight_type"));
    }
    if (has_bias(context) && context.needs_input_grad(kBias)) {
      const at::Tensor ones = at::ones({1, rows.size(0)}, rows.options());
      result[kBias] = product(ones, rows, type_of(context, "bias_type")).squeeze(0);
    }
    return result;
  }

  static variable_list differentiable(const AutogradContext& context, const at::Tensor& rows,
                                      const at::Tensor& input, const at::Tensor& weight) {
    variable_list result(kCount);
    if (context.needs_input_grad(kCastInput)) {
      result[kCastInput] = at::mm(rows, weight).view(input.sizes());
    }
    if (context.needs_input_grad(kCastWeight)) {
      result[kCastWeight] = at::mm(rows.t(), as_rows(input));
    }
    if (has_bias(context) && context.needs_input_grad(kCastBias)) {
      result[kCastBias] = rows.sum(0);
    }
    return result;
  }
};

}  // namespace

std::optional<at::ScalarType> type_of_mixed_linear(const at::Tensor& input,
                                                   const at::Tensor& weight,
                                                   const at::Tensor& bias) {
  if (!input.is_cuda() || !at::autocast::is_autocast_enabled(at::kCUDA)) return std::nullopt;
  if (!at::GradMode::is_enabled() || !weight.requires_grad()) return std::nullopt;
  // Vectors are rare, and at::linear handles them separately.
  if (input.dim() < 2 || input.numel() == 0 || weight.numel() == 0) return std::nullopt;
  if (!is_castable(input) || !is_castable(weight) || (bias.defined() && !is_castable(bias))) {
    return std::nullopt;
  }
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCUDA);
  return type == at::kHalf || type == at::kBFloat16 ? std::optional(type) : std::nullopt;
}

at::Tensor mixed_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        at::ScalarType type) {
  const auto cast = [&](const at::Tensor& tensor) {
    return at::autocast::cached_cast(type, tensor, input.device().type());
  };
  using Bias = std::optional<at::Tensor>;
  return MixedLinear::apply(input, weight, cast(input), cast(weight),
                            bias.defined() ? Bias(bias) : Bias(),
                            bias.defined() ? Bias(cast(bias)) : Bias());
}

}  // namespace accelerant::nn
