// Loading the state of an optimizer in two steps, for what loads several objects and changes all of
// them or none.
#pragma once

#include <functional>

#include "accelerant/optim/optimizer_state.h"

namespace accelerant::optim {

// Checks everything, as load_optimizer_state_dict() does, and changes nothing. What is returned
// does the rest; the optimizer and the tensors of the state must be as they are until then.
std::function<void()> prepare_loading(torch::optim::Optimizer& optimizer,
                                      const ParameterNames& names, const NamedState& state);

}  // namespace accelerant::optim
