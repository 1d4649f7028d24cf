// What a checkpoint holds of windows that are half complete, and of gradients that wait for their
// step. Both are of one process: gradients are exchanged at the end of a window only.
#pragma once

#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"
#include "accelerator/core.h"

namespace accelerant::detail {

// An Error in the one place that training cannot resume from: between the last backward of an
// update and its step.
void require_no_step_is_due(const Core& core);

// The windows and the gradients of the prepared optimizers. The tensors are the gradients
// themselves.
NamedState save_windows(const Core& core, const optim::ParameterNames& names);

// Whether there is anything in it that another number of processes could not go on with.
bool has_half_windows(const nlohmann::json& values);

// Makes them what they were. All models and optimizers must be prepared.
void load_windows(Core& core, const optim::ParameterNames& names, const NamedState& state);

}  // namespace accelerant::detail
