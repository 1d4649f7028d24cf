// The tensors of a module by name.
#pragma once

#include "accelerant/tensor/named_state.h"

namespace torch::nn {
class Module;
}

namespace accelerant {

// Parameters and buffers, in Python's order: a module's own parameters, its own buffers, then its
// children.
StateDict state_of(const torch::nn::Module& module);

}  // namespace accelerant
