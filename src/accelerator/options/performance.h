// Applies PerformanceOptions to libtorch and to the process.
#pragma once

#include <c10/core/Device.h>

#include "accelerant/accelerator/options.h"
#include "accelerant/watch/environment.h"

namespace accelerant::detail {

// Fills in the environment and the defaults, and checks the values.
PerformanceOptions resolve(PerformanceOptions options, const c10::Device& device);

// Applies the options that are set.
void apply(const PerformanceOptions& options, const dist::Environment& environment);

}  // namespace accelerant::detail
