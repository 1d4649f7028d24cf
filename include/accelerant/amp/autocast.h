// Autocast for C++: the scope in which matrix products and convolutions run in 16 bits while
// everything that needs range or precision stays in 32.
//
//   {
//     accelerant::AutocastGuard autocast({at::kCUDA, at::kHalf});
//     loss = torch::mse_loss(net->forward(x), y);
//   }
//   loss.backward();  // outside: backward ops follow the types of the forward ones
//
// The meaning is that of torch.autocast in Python, with one difference: what cannot be done (a
// device that is not there, a type other than float16 and bfloat16) is an Error, never a silent
// return to float32.
//
// Autocast is thread-local. A thread started inside a guard does not inherit it; carry it over with
// AutocastState.
//
// Custom autograd functions get what Python's custom_fwd and custom_bwd decorators do by functions
// of the same names. The backward then runs with the same autocast state as its forward:
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
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "accelerant/tensor/nested.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace accelerant {

struct AutocastOptions {
  // The device type whose operators are cast. Tensors of other devices are not touched.
  c10::DeviceType device_type = c10::DeviceType::CUDA;

  // at::kHalf or at::kBFloat16. Default: the device's own, float16 on CUDA and bfloat16 on CPU.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // false switches autocast off inside an outer guard.
  bool enabled = true;

  // Whether the 16-bit copies of weights are kept for the rest of the outermost scope. Default: as
  // it is in the surrounding scope (true outside of any). Switch it off when weights change inside
  // one scope.
  std::optional<bool> cache_enabled = std::nullopt;
};

// Whether torch knows autocast for this device type. It does not say that such a device is present.
bool is_autocast_available(c10::DeviceType device_type);

// What the calling thread's autocast is set to.
bool is_autocast_enabled(c10::DeviceType device_type);
c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);

// What a thread's autocast is set to, to be carried into another thread.
class AutocastState {
 public:
  // The calling thread's state. Enter it in another thread with `AutocastGuard guard(state)`.
  static AutocastState capture();

 private:
  friend class AutocastGuard;
  AutocastState() = default;

  struct PerDevice {
    c10::DeviceType device_type = c10::DeviceType::CPU;
    c10::ScalarType dtype = c10::ScalarType::Float;
    bool enabled = false;
  };

  static AutocastState capture(c10::DeviceType device_type);
  void apply() const;

  std::array<PerDevice, 10> devices_{};  // the first count_ of them
  std::size_t count_ = 0;
  bool cache_enabled_ = true;
};

// Sets the calling thread's autocast for its own lifetime and restores it afterwards, also when an
// exception leaves the scope. Guards nest; at the end of the outermost one the cached 16-bit
// weights are dropped, so that the next step sees the weights the optimizer has written.
class [[nodiscard]] AutocastGuard {
 public:
  // Throws Error before anything is changed if the options cannot be met.
  explicit AutocastGuard(const AutocastOptions& options);

  // Continues another thread's state in this thread.
  explicit AutocastGuard(const AutocastState& state);

  ~AutocastGuard();

  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState outer_;
};

// Runs f under autocast and returns what it returns.
template <class F>
decltype(auto) with_autocast(const AutocastOptions& options, F&& f) {
  const AutocastGuard guard(options);
  return std::forward<F>(f)();
}

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
