#include "accelerant/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "accelerant/core/error.h"

namespace accelerant::detail {
namespace {

constexpr const char* kSavedKey = "accelerant.autocast";

}  // namespace

bool enter_custom_forward(torch::autograd::AutogradContext* ctx,
                          const CustomForwardOptions& options) {
  if (!is_autocast_available(options.device_type)) {
    throw Error(ErrorDetails{.problem = "custom_fwd needs a device type with autocast support",
                             .expected = "cpu, cuda, ...",
                             .got = c10::DeviceTypeName(options.device_type, /*lower_case=*/true),
                             .hint = "pass the device type on which the function runs"});
  }
  const bool autocast_is_on = at::autocast::is_autocast_enabled(options.device_type);
  const c10::ScalarType dtype = at::autocast::get_autocast_dtype(options.device_type);
  const bool backward_under_autocast = autocast_is_on && !options.cast_inputs;
  ctx->saved_data[kSavedKey] =
      std::vector<int64_t>{static_cast<int64_t>(options.device_type), static_cast<int64_t>(dtype),
                           static_cast<int64_t>(backward_under_autocast)};
  return autocast_is_on && options.cast_inputs.has_value();
}

AutocastOptions saved_autocast_state(torch::autograd::AutogradContext* ctx) {
  const auto saved = ctx->saved_data.find(kSavedKey);
  if (saved == ctx->saved_data.end()) {
    throw Error(ErrorDetails{.problem = "custom_bwd found no autocast state in its context",
                             .hint = "wrap the forward of the same function in custom_fwd"});
  }
  const std::vector<int64_t> state = saved->second.toIntVector();
  return {.device_type = static_cast<c10::DeviceType>(state[0]),
          .dtype = static_cast<c10::ScalarType>(state[1]),
          .enabled = state[2] != 0};
}

at::Tensor cast_input(const at::Tensor& input, c10::DeviceType device_type, c10::ScalarType dtype) {
  const bool eligible = input.defined() && input.is_floating_point() &&
                        input.device().type() == device_type && input.scalar_type() != at::kDouble;
  return eligible ? input.to(dtype) : input;
}

}  // namespace accelerant::detail
