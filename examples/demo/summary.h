// The lines the demo ends with.
#pragma once

#include <optional>
#include <string>

#include "options.h"
#include "speed.h"
#include "training.h"

namespace demo {

// `speed` is empty when there was nothing to compare.
std::string summary(const Options& options, torch::Device device, const TrainingResult& training,
                    const std::optional<SpeedComparison>& speed);

}  // namespace demo
