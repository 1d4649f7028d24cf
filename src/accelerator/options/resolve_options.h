// Combines the options of an Accelerator with the environment.
#pragma once

#include "accelerant/accelerator/options.h"
#include "accelerant/watch/environment.h"

namespace accelerant::detail {

// Fills missing options from the environment and the defaults, and checks everything. An explicit
// option wins, and its environment variable is not even read.
AcceleratorOptions resolve(AcceleratorOptions options, const dist::Environment& environment);

}  // namespace accelerant::detail
