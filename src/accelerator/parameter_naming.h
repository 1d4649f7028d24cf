// The names of parameters in checkpoints.
#pragma once

#include "accelerant/optim/optimizer_state.h"
#include "accelerator/core.h"

namespace accelerant::detail {

// Of all prepared models: those of the first as the module has them, those of others with "model_1." and so on in
// front.
optim::ParameterNames names_of_parameters(const Core& core);

}  // namespace accelerant::detail
