// The state of torch's default random generators. After restoring, the generators draw the same
// numbers as after capturing.
//
//   const accelerant::RandomState before = accelerant::RandomState::capture();
//   ...
//   before.restore();
#pragma once

#include <string>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace accelerant {

struct RandomState {
  // One CPU tensor of bytes per generator: "cpu", "cuda.0", "cuda.1", ... The content is that of
  // Python's torch.get_rng_state() and torch.cuda.get_rng_state(i).
  StateDict tensors = StateDict();

  // Copies the state of the CPU and of all CUDA devices that this process sees. Your own generators
  // and <random> are not included.
  static RandomState capture();

  // Sets the generators that it contains and leaves others alone. Returns the names that were
  // skipped because this process has no such device. Throws Error, without setting anything, if a
  // generator does not accept its state.
  std::vector<std::string> restore() const;
};

}  // namespace accelerant
