// The options of an Accelerator with the environment taken into account.
#pragma once

#include "accelerant/accelerator/options.h"
#include "accelerant/watch/environment.h"

namespace accelerant::detail {

// Fills what was left out from the environment and the defaults, and checks everything. An explicit
// option wins over the environment variable, which is then not even read.
AcceleratorOptions resolve(AcceleratorOptions options, const dist::Environment& environment);

}  // namespace accelerant::detail
