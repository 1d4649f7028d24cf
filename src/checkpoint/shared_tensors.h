// Names that mean the same tensor: tied weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace accelerant::checkpoint {

// The names of each tensor, in the order of the state. Tensors are the same if they view the same
// memory in the same way; tensors that merely overlap are not.
std::vector<std::vector<std::string>> names_of_each(const StateDict& state);

struct DistinctTensors {
  StateDict kept = StateDict();                     // each tensor once, in the order of the state
  std::map<std::string, std::string> aliases = {};  // every other name -> the kept name
};

// Keeps the alphabetically first of several names, like Python's safetensors.
DistinctTensors distinct_tensors(const StateDict& state);

}  // namespace accelerant::checkpoint
