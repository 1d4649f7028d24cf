// The state of torch's default random generators: what is drawn after restoring is what was drawn
// after capturing.
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
  // One tensor of bytes for each generator, on the CPU: "cpu", "cuda.0", "cuda.1", ... Their
  // content is that of Python's torch.get_rng_state() and torch.cuda.get_rng_state(i).
  StateDict tensors = StateDict();

  // Of the CPU and of all CUDA devices that this process sees. Copies. Generators of your own and
  // <random> are not part of it.
  static RandomState capture();

  // Sets the generators that are in it, and leaves others alone. Returns the names that were
  // skipped because this process has no such device. A state that no generator takes is an Error,
  // and then nothing is set.
  std::vector<std::string> restore() const;
};

}  // namespace accelerant
