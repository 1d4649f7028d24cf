// Notices a loop over a loader that has no batches.
#pragma once

#include "accelerator/warnings/warnings.h"

namespace accelerant::data {
class LoaderState;
}

namespace accelerant::detail {

// A loop over the loader begins.
void warn_if_empty(Warnings& warnings, const data::LoaderState& loader);

}  // namespace accelerant::detail
