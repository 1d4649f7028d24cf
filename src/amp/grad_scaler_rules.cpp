#include "amp/grad_scaler_rules.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"

namespace accelerant::detail {
namespace {

constexpr const char* kOurKey = "accelerant";

template <class T>
T at_key(const nlohmann::json& object, const char* key) {
  const auto value = object.find(key);
  if (value == object.end()) {
    throw Error(
        ErrorDetails{.problem = "The state of a GradScaler is incomplete",
                     .expected = c10::str("a key '", key, "'"),
                     .got = object.dump(),
                     .hint = "load a state written by state_dict() of an enabled GradScaler"});
  }
  const bool fits = std::is_integral_v<T> ? value->is_number_integer() : value->is_number();
  if (!fits) {
    throw Error(
        ErrorDetails{.problem = c10::str("The state of a GradScaler has an invalid '", key, "'"),
                     .expected = std::is_integral_v<T> ? "a whole number" : "a number",
                     .got = value->dump()});
  }
  return value->get<T>();
}

int64_t validated_count(int64_t count, const char* name) {
  if (count >= 0 && count <= std::numeric_limits<int32_t>::max()) return count;
  throw Error(ErrorDetails{.problem = c10::str(name, " is out of range"),
                           .expected = "0 to 2147483647",
                           .got = c10::str(count)});
}

}  // namespace

double validated_growth_factor(double growth_factor) {
  if (growth_factor > 1.0 && std::isfinite(growth_factor)) return growth_factor;
  throw Error("The growth factor must be > 1.0.", c10::str("got ", growth_factor));
}

double validated_backoff_factor(double backoff_factor) {
  if (!(backoff_factor < 1.0)) {
    throw Error("The backoff factor must be < 1.0.", c10::str("got ", backoff_factor));
  }
  if (backoff_factor > 0.0) return backoff_factor;
  throw Error(ErrorDetails{.problem = "The backoff factor must be > 0.0",
                           .got = c10::str(backoff_factor),
                           .hint = "a scale of zero or below would erase every gradient"});
}

int64_t validated_growth_interval(int64_t growth_interval) {
  if (growth_interval >= 1 && growth_interval <= std::numeric_limits<int32_t>::max()) {
    return growth_interval;
  }
  throw Error(ErrorDetails{.problem = "The growth interval is out of range",
                           .expected = "1 to 2147483647 iterations",
                           .got = c10::str(growth_interval),
                           .hint = "for a scale that never grows pass .dynamic = false"});
}

float validated_scale(double scale, const char* name) {
  const auto as_float = static_cast<float>(scale);
  if (as_float > 0.0F && std::isfinite(as_float)) return as_float;
  throw Error(ErrorDetails{.problem = c10::str(name, " cannot be used as a loss scale"),
                           .expected = "a positive finite float",
                           .got = c10::str(scale)});
}

void validate(const GradScalerOptions& options) {
  validated_growth_factor(options.growth_factor);
  validated_backoff_factor(options.backoff_factor);
  validated_growth_interval(options.growth_interval);
  validated_scale(options.init_scale, "init_scale");
  validated_scale(options.min_scale, "min_scale");
  validated_scale(options.max_scale, "max_scale");
  if (options.min_scale > options.max_scale) {
    throw Error(ErrorDetails{.problem = "min_scale is above max_scale",
                             .expected = c10::str("at most ", options.max_scale),
                             .got = c10::str(options.min_scale)});
  }
  const bool has_own_minimum = options.min_scale != GradScalerOptions{}.min_scale;
  if (options.init_scale > options.max_scale ||
      (has_own_minimum && options.init_scale < options.min_scale)) {
    throw Error(ErrorDetails{.problem = "init_scale is out of bounds",
                             .expected = c10::str(options.min_scale, " (min_scale) to ",
                                                  options.max_scale, " (max_scale)"),
                             .got = c10::str(options.init_scale)});
  }
  if (options.hysteresis < 1 || options.hysteresis > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorDetails{.problem = "hysteresis is out of range",
                             .expected = "1 to 2147483647 overflows",
                             .got = c10::str(options.hysteresis),
                             .hint = "1 backs off at every overflow, as PyTorch does"});
  }
}

kernels::ScaleState initial_state(const GradScalerOptions& options) {
  kernels::ScaleState state{};
  kernels::set_scale(state, static_cast<float>(options.init_scale));
  state.hysteresis_left = static_cast<int32_t>(options.hysteresis);
  return state;
}

kernels::UpdateRule update_rule(const GradScalerOptions& options) {
  using Refill = GradScalerOptions::HysteresisRefill;
  return {.growth_factor = options.growth_factor,
          .backoff_factor = options.backoff_factor,
          .growth_interval = options.growth_interval,
          .min_scale = static_cast<float>(options.min_scale),
          .max_scale = static_cast<float>(options.max_scale),
          .hysteresis = static_cast<int32_t>(options.hysteresis),
          .refill_each_clean_update = options.hysteresis_refill == Refill::on_clean_iteration,
          .dynamic = options.dynamic,
          .stops = false};
}

nlohmann::json to_json(const GradScalerOptions& options, const kernels::ScaleState& state,
                       double scale) {
  return {{"scale", scale},
          {"growth_factor", options.growth_factor},
          {"backoff_factor", options.backoff_factor},
          {"growth_interval", options.growth_interval},
          {"_growth_tracker", state.growth_tracker},
          {kOurKey,
           {{"hysteresis_left", state.hysteresis_left},
            {"updates", state.updates},
            {"skips", state.skips},
            {"last_skip", state.last_skip}}}};
}

void from_json(const nlohmann::json& saved, GradScalerOptions& options,
               kernels::ScaleState& state) {
  if (!saved.is_object()) {
    throw Error(ErrorDetails{.problem = "The state of a GradScaler has the wrong type",
                             .expected = "a JSON object",
                             .got = saved.dump()});
  }
  if (saved.empty()) {
    throw Error(
        "The source state dict is empty, possibly because it was saved from a disabled instance of "
        "GradScaler.");
  }
  GradScalerOptions new_options = options;
  kernels::ScaleState new_state = state;
  new_options.init_scale = at_key<double>(saved, "scale");
  kernels::set_scale(new_state, validated_scale(new_options.init_scale, "scale"));
  new_options.growth_factor = validated_growth_factor(at_key<double>(saved, "growth_factor"));
  new_options.backoff_factor = validated_backoff_factor(at_key<double>(saved, "backoff_factor"));
  new_options.growth_interval =
      validated_growth_interval(at_key<int64_t>(saved, "growth_interval"));
  new_state.growth_tracker = static_cast<int32_t>(
      validated_count(at_key<int64_t>(saved, "_growth_tracker"), "_growth_tracker"));
  const nlohmann::json ours = saved.value(kOurKey, nlohmann::json::object());
  const auto count = [&](const char* key, int64_t otherwise) {
    return ours.contains(key) ? validated_count(at_key<int64_t>(ours, key), key) : otherwise;
  };
  new_state.hysteresis_left = static_cast<int32_t>(
      std::min(count("hysteresis_left", options.hysteresis), options.hysteresis));
  new_state.updates = count("updates", state.updates);
  new_state.skips = count("skips", state.skips);
  new_state.last_skip = count("last_skip", state.last_skip);
  options = new_options;
  state = new_state;
}

}  // namespace accelerant::detail
