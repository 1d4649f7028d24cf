// Notices gradients that are changed or used at the wrong time: zero_grad() is forgotten, they are
// clipped after the step, or something else clips them while they carry the loss scale.
//
// Programs that clip scaled gradients do so from the start, so only the first steps are looked at
// for that.
#pragma once

#include <optional>

#include "accelerator/warnings/tensor_mark.h"

namespace accelerant::detail {

struct Core;

class GradientWatch {
 public:
  explicit GradientWatch(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  // Around every backward. `are_used`: the gradients are still those of the last step.
  // `is_at_boundary`: a step may follow.
  void before_backward(bool are_used);
  void after_backward(const Core& core, bool are_used, bool is_at_boundary);

  // Gradients are about to be clipped that a step has used.
  void note_late_clipping(Core& core);

  // A step begins. `are_scaled`: the gradients carry the loss scale.
  void before_step(Core& core, bool are_scaled);

  // The Accelerator itself has multiplied the gradients.
  void note_own_change() { norm_.reset(); }

  // Gradients are gone, or have changed in a way that is fine.
  void start_over();

 private:
  void look_for_old_gradients(Core& core);
  void look_for_scaled_clipping(Core& core) const;

  // Of all gradients together; nullopt if there are none. Waits for the device.
  std::optional<double> norm() const;

  torch::optim::Optimizer& optimizer_;
  TensorMark gradient_;         // after the last backward that added to used gradients
  bool were_used_ = false;      // before the backward that is running
  bool has_old_ = false;        // gradients that a step has used are among the sums
  int steps_with_old_ = 0;      // in the whole training
  int late_clippings_ = 0;      // likewise
  int compared_ = 0;            // backwards whose norm was taken
  std::optional<double> norm_;  // after the last backward; empty: not compared
};

}  // namespace accelerant::detail
