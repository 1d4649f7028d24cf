// Custom autograd functions under autocast: what Python's custom_fwd and custom_bwd decorators do,
// for torch::autograd::Function.
//
//   using torch::autograd::AutogradContext;
//   using torch::autograd::variable_list;
//
//   struct MyMatmul : torch::autograd::Function<MyMatmul> {
//     static torch::Tensor forward(AutogradContext* ctx, torch::Tensor a, torch::Tensor b) {
//       return accelerant::custom_fwd(ctx, {.device_type = torch::kCUDA}, [&](auto x, auto y) {
//         ctx->save_for_backward({x, y});
//         return x.mm(y);
//       }, a, b);
//     }
//     static variable_list backward(AutogradContext* ctx, variable_list grads) {
//       return accelerant::custom_bwd(ctx, [&]() -> variable_list {
//         auto saved = ctx->get_saved_variables();
//         return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
//       });
//     }
//   };
//
// The backward then runs with the same autocast state as its forward.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <utility>

#include "accelerant/amp/autocast.h"
#include "accelerant/tensor/nested.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace accelerant {

struct CustomForwardOptions {
  // The device type whose autocast state is meant.
  c10::DeviceType device_type = c10::DeviceType::CUDA;

  // When set and autocast is on, floating-point inputs on that device (float64 excepted) are cast
  // to this type and the function runs with autocast off, forward and backward. Default: inputs
  // stay as they are and the function runs under whatever autocast state it meets.
  std::optional<c10::ScalarType> cast_inputs = std::nullopt;
};

namespace detail {
// Stores in ctx which state the backward must run under; returns whether inputs are to be cast.
bool enter_custom_forward(torch::autograd::AutogradContext* ctx, const CustomForwardOptions&);
AutocastOptions saved_autocast_state(torch::autograd::AutogradContext* ctx);
at::Tensor cast_input(const at::Tensor& input, c10::DeviceType device_type, c10::ScalarType dtype);
}  // namespace detail

// Calls f(inputs...) as the forward of a custom function. Inputs may be nested.
template <class F, class... Inputs>
auto custom_fwd(torch::autograd::AutogradContext* ctx, const CustomForwardOptions& options, F&& f,
                const Inputs&... inputs) {
  if (!detail::enter_custom_forward(ctx, options)) return std::forward<F>(f)(inputs...);
  const AutocastGuard off({.device_type = options.device_type, .enabled = false});
  return std::forward<F>(f)(map_tensors(inputs, [&](const at::Tensor& input) {
    return detail::cast_input(input, options.device_type, *options.cast_inputs);
  })...);
}

// Calls f() as the backward of a custom function whose forward went through custom_fwd. Throws
// Error if it did not.
template <class F>
auto custom_bwd(torch::autograd::AutogradContext* ctx, F&& f) {
  const AutocastGuard guard(detail::saved_autocast_state(ctx));
  return std::forward<F>(f)();
}

}  // namespace accelerant
