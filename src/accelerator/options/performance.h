// What PerformanceOptions ask of libtorch and of the process.
#pragma once

#include <c10/core/Device.h>

#include "accelerant/accelerator/options.h"
#include "accelerant/watch/environment.h"

namespace accelerant::detail {

// Fills in the environment and the defaults, and checks what can be checked.
PerformanceOptions resolve(PerformanceOptions options, const c10::Device& device);

// Sets what is set.
void apply(const PerformanceOptions& options, const dist::Environment& environment);

}  // namespace accelerant::detail
