// A linear layer in 16 bits whose gradients have the types of the tensors they belong to, without a
// separate pass to cast them.
//
// Under autocast torch casts input, weight and bias to 16 bits, and casts their gradients, which
// the products have rounded to 16 bits, back to float32. Here the products write float32 directly,
// and the gradient of the bias is a product too, which is twice as fast as a sum over rows.
// Gradients of a float32 weight are therefore not rounded, and do not overflow in float16.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace accelerant::nn {

// The type that autocast uses for a product with this input, if mixed_linear() is faster there: 16
// bits, on a GPU, with gradients required. `bias` may be undefined.
std::optional<at::ScalarType> type_of_mixed_linear(const at::Tensor& input,
                                                   const at::Tensor& weight,
                                                   const at::Tensor& bias);

// input · weightᵀ + bias in `type`, inside autocast. The result is that of at::linear, bit for bit.
// Gradients of gradients go through torch's own operations. `bias` may be undefined.
at::Tensor mixed_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        at::ScalarType type);

}  // namespace accelerant::nn
