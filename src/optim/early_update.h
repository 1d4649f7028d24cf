// What a FusedStep on the host offers for updates that begin before the step they belong to: each
// parameter is updated as soon as its gradient is final, while backward computes the others.
//
// Images in host memory and states are new then, and parameters once they are sent, which is for
// after the backward. The step updates and sends what is left. It must come, with the same gradients
// and options, and without clipping or a scaler: what is updated cannot be taken back. The step
// throws Error otherwise, and so does whoever drops the gradients or reads the state before.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerant/optim/fused_step.h"

namespace accelerant {

// Borrows the step.
class EarlyUpdate {
 public:
  explicit EarlyUpdate(FusedStep& fused_step) : fused_step_(fused_step) {}

  // Before the backward. Returns false if no parameter can be updated early: not before the first
  // step, since nothing is known of the gradients, and not if parameters have no images.
  bool begin();

  // Updates the parameter with its final gradient, or leaves it to the step. Any one thread may
  // call it, at a time when no other function is called.
  void update(const at::Tensor& parameter);

  // Queues the copy of an updated parameter to its device, on the current stream. Nothing that comes
  // later on another stream may use the old value. At the same time another thread may update others.
  void send(const at::Tensor& parameter);

  // Whether some are updated and the step has not come yet.
  bool has_begun() const;

  // Throws Error if so: `what` happens instead of the step.
  void require_step(const char* what) const;

 private:
  FusedStep& fused_step_;
};

}  // namespace accelerant
