// Autocast for C++: a scope in which matrix products and convolutions run in 16 bits, while
// everything that needs range or precision stays in 32.
//
//   {
//     accelerant::AutocastGuard autocast({at::kCUDA, at::kHalf});
//     loss = torch::mse_loss(net->forward(x), y);
//   }
//   loss.backward();  // outside: backward ops follow the types of the forward ones
//
// The meaning is that of torch.autocast in Python, with one difference: a request that cannot be
// met (a missing device, a type other than float16 and bfloat16) is an Error, never a silent
// fallback to float32.
//
// Autocast is thread-local. A thread started inside a guard does not inherit it; pass it on with
// AutocastState.
//
// For custom autograd functions, custom_fwd and custom_bwd do what Python's decorators of the same
// names do. The backward then runs with the same autocast state as its forward:
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
  // The device type whose operators are cast. Tensors on other devices are not affected.
  c10::DeviceType device_type = c10::DeviceType::CUDA;

  // at::kHalf or at::kBFloat16. Default: the device's own type, float16 on CUDA and bfloat16 on
  // CPU.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // false turns autocast off inside an outer guard. Default: true.
  bool enabled = true;

  // Whether to keep 16-bit copies of weights for the rest of the outermost scope. Default: the
  // setting of the surrounding scope, or true outside of any. Turn it off if weights change inside
  // one scope.
  std::optional<bool> cache_enabled = std::nullopt;
};

// Whether torch supports autocast for this device type. It does not tell whether such a device is
// present.
bool is_autocast_available(c10::DeviceType device_type);

// The autocast settings of the calling thread.
bool is_autocast_enabled(c10::DeviceType device_type);
c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);

// The autocast settings of a thread, to be carried over to another thread.
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

  std::array<PerDevice, 10> devices_{};  // only the first count_ are used
  std::size_t count_ = 0;
  bool cache_enabled_ = true;
};

// Sets the calling thread's autocast for its own lifetime and restores it afterwards, even if an
// exception leaves the scope. Guards nest. The end of the outermost one drops the cached 16-bit
// weights, so that the next step sees the weights that the optimizer has written.
class [[nodiscard]] AutocastGuard {
 public:
  // Throws Error, before changing anything, if the options cannot be met.
  explicit AutocastGuard(const AutocastOptions& options);

  // Continues another thread's state in this thread.
  explicit AutocastGuard(const AutocastState& state);

  ~AutocastGuard();

  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState outer_;
};

// Runs f under autocast and returns its result.
template <class F>
decltype(auto) with_autocast(const AutocastOptions& options, F&& f) {
  const AutocastGuard guard(options);
  return std::forward<F>(f)();
}

struct CustomForwardOptions {
  // The device type whose autocast state matters. Default: CUDA.
  c10::DeviceType device_type = c10::DeviceType::CUDA;

  // If set and autocast is on, floating-point inputs on that device (except float64) are cast to
  // this type, and the function runs with autocast off, both forward and backward. Default: inputs
  // are unchanged and the function runs under the current autocast state.
  std::optional<c10::ScalarType> cast_inputs = std::nullopt;
};

namespace detail {
// Stores in ctx the state for the backward; returns whether to cast the inputs.
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

// Calls f() as the backward of a custom function whose forward went through custom_fwd; throws
// Error if it did not.
template <class F>
auto custom_bwd(torch::autograd::AutogradContext* ctx, F&& f) {
  const AutocastGuard guard(detail::saved_autocast_state(ctx));
  return std::forward<F>(f)();
}

}  // namespace accelerant
