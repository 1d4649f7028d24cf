// Which values a GradScaler accepts, and how it is written as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "accelerant/amp/grad_scaler.h"
#include "kernels/scale_state.h"

namespace accelerant::detail {

// Each throws Error if the value is out of range.
void validate(const GradScalerOptions& options);
double validated_growth_factor(double growth_factor);
double validated_backoff_factor(double backoff_factor);
int64_t validated_growth_interval(int64_t growth_interval);
float validated_scale(double scale, const char* name);

kernels::ScaleState initial_state(const GradScalerOptions& options);
kernels::UpdateRule update_rule(const GradScalerOptions& options);

// `scale` is passed separately because before the first use it has more digits than a float.
nlohmann::json to_json(const GradScalerOptions& options, const kernels::ScaleState& state,
                       double scale);

// Takes over the five values of PyTorch and, if present, ours. Throws Error, without changing
// anything, if something is missing or out of range.
void from_json(const nlohmann::json& saved, GradScalerOptions& options, kernels::ScaleState& state);

}  // namespace accelerant::detail
