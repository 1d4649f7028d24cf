// The part of a checkpoint for incomplete windows and for gradients that wait for their step. Both
// belong to one process: gradients are exchanged only at the end of a window.
#pragma once

#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"
#include "accelerator/core.h"

namespace accelerant::detail {

// Throws Error in the one place that training cannot resume from: between the last backward of an
// update and its step.
void require_no_step_is_due(const Core& core);

// The windows and the gradients of the prepared optimizers. The tensors are the gradients
// themselves.
NamedState save_windows(const Core& core, const optim::ParameterNames& names);

// Whether it contains anything that a different number of processes could not resume.
bool has_half_windows(const nlohmann::json& values);

// Restores them. All models and optimizers must be prepared.
void load_windows(Core& core, const optim::ParameterNames& names, const NamedState& state);

}  // namespace accelerant::detail
