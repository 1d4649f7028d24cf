// Names that mean the same tensor (tied weights), so that each tensor is stored once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerant/tensor/state_dict.h"

namespace accelerant::checkpoint {

struct DistinctTensors {
  StateDict kept = StateDict();  // in the order of the state
  std::map<std::string, std::string> aliases =
      {};  // dropped name -> the kept one, which has the same data
};

// Of names whose tensors are the same piece of memory seen in the same way, the alphabetically first is kept, as
// in Python's safetensors. Tensors that only overlap are kept both: they lose nothing by it but space.
DistinctTensors distinct_tensors(const StateDict& state);

}  // namespace accelerant::checkpoint
