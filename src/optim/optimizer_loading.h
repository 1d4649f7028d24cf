// Loads the state of an optimizer in two steps, for code that loads several objects and changes all
// of them or none.
#pragma once

#include <functional>

#include "accelerant/optim/optimizer_state.h"

namespace accelerant::optim {

// Checks everything, like load_optimizer_state_dict(), without changing anything. The returned
// function does the rest; the optimizer and the tensors of the state must not change until then.
std::function<void()> prepare_loading(torch::optim::Optimizer& optimizer,
                                      const ParameterNames& names, const NamedState& state);

}  // namespace accelerant::optim
