// What a FusedStep offers for steps in CUDA graphs. A step that is not captured does all of this
// itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerant/optim/fused_step.h"

namespace accelerant {

// Learning rates that depend on what only the device knows, for example how many updates were
// skipped.
struct RateChoice {
  std::vector<std::vector<double>> rates = {};  // per case, the rates of all param groups
  at::Tensor which = {};                        // the case that applies: one int64 on the device
};

// Borrows the step.
class FusedStepReplay {
 public:
  explicit FusedStepReplay(FusedStep& fused_step) : fused_step_(fused_step) {}

  // Call it before capturing a step and before each replay: transfers what has changed on the host
  // (learning rates, 16-bit parameters with a float32 copy) to the device.
  void prepare();

  // The same, but the device chooses the learning rates instead of the options.
  void prepare(const RateChoice& choice);

  // Call it after a replay, whose step has written the parameters without autograd noticing.
  void note_replayed();

  // Changes when captured steps become stale: the state was loaded, options were replaced or
  // changed their kind, parameters were added or removed.
  uint64_t fingerprint();

  // Call it before a capture, so that its replays need not transfer the step's tables, about 20 us
  // each. Then call take_memory_of_graphs() between the capture and its first replay, in stream
  // order too. The memory belongs to the current stream, which must wait for all replays before the
  // memory is released.
  void reserve_for_capture();

  // The memory of the steps captured since the last call: keep it as long as their graphs. Memory
  // that is not taken is kept here. Fills reserved memory, on the current stream.
  std::vector<at::Tensor> take_memory_of_graphs();

 private:
  FusedStep& fused_step_;
};

}  // namespace accelerant
