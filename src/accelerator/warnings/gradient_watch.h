// Notices gradients that are changed or used at the wrong time: zero_grad() is forgotten, they are
// clipped after the step, or something else clips them while they carry the loss scale.
//
// Programs that do so do it from the start, so only the first steps are looked at closely.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerator/warnings/tensor_mark.h"

namespace accelerant::detail {

struct Core;

class GradientWatch {
 public:
  explicit GradientWatch(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  // Around every backward. `are_used`: the gradients are still those of the last step.
  void before_backward(bool are_used);
  void after_backward(const Core& core);

  // The gradients are about to be clipped.
  void before_clipping(Core& core, bool are_used);

  // A step begins. `are_scaled`: the gradients carry the loss scale.
  void before_step(Core& core, bool are_scaled);

  // The Accelerator itself has multiplied the gradients.
  void note_own_change() { norms_.clear(); }

  // Gradients are gone, or have changed in a way that is fine.
  void start_over();

 private:
  void look_for_old_gradients(Core& core);
  void look_for_changed_scale(Core& core) const;

  // The bits of the norm of each gradient. Waits for the device.
  std::vector<uint64_t> norms() const;

  torch::optim::Optimizer& optimizer_;
  TensorMark gradient_;       // after the last backward
  bool has_old_ = false;      // gradients that a step has used are among the sums
  int steps_with_old_ = 0;    // so far
  int late_clippings_ = 0;    // so far
  int steps_ = 0;             // whose norms were compared
  std::vector<uint64_t> norms_;  // after the last backward; empty: not compared
};

}  // namespace accelerant::detail
