// What a FusedStep offers to steps in CUDA graphs. All of this happens by itself in a step that is
// not captured.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerant/optim/fused_step.h"

namespace accelerant {

// Learning rates that depend on what only the device knows, say on how many updates were skipped.
struct RateChoice {
  std::vector<std::vector<double>> rates = {};  // for each case, those of all param groups
  at::Tensor which = {};                        // the case that holds: one int64 on the device
};

// Borrows the step.
class FusedStepReplay {
 public:
  explicit FusedStepReplay(FusedStep& fused_step) : fused_step_(fused_step) {}

  // Before a step is captured, and before each replay: brings what has changed on the host since
  // (learning rates, 16-bit parameters that have a float32 copy) to the device.
  void prepare();

  // The same, with the learning rates that the device chooses in place of those in the options.
  void prepare(const RateChoice& choice);

  // After a replay, whose step has written the parameters behind autograd's back.
  void note_replayed();

  // Changes when a step that was captured before would not be the optimizer's any more: its state
  // was loaded, its options were replaced or are of another kind, parameters have come or gone.
  uint64_t fingerprint();

  // Before a capture, to save its replays from bringing along what the step works with, some 20 us
  // each. Then take_memory_of_graphs() must come between the capture and its first replay, in the
  // order of streams too. The memory is of the current stream, which must be behind all replays
  // before it is given up.
  void reserve_for_capture();

  // What the steps that were captured since the last call work with: to be kept as long as their
  // graphs. What is not taken is kept here. Fills what was reserved, on the current stream.
  std::vector<at::Tensor> take_memory_of_graphs();

 private:
  FusedStep& fused_step_;
};

}  // namespace accelerant
