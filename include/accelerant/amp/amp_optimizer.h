// The interface of optimizers that unscale and skip by themselves, on the device.
//
// GradScaler::step must know whether to call a plain torch::optim::Optimizer, so it waits for the
// overflow flag. An optimizer that also derives from AmpOptimizer is handed the flag and the scale
// as tensors instead and is always called: no host wait.
//
//   class AmpSgd : public torch::optim::SGD, public accelerant::AmpOptimizer {
//    public:
//     using SGD::SGD;
//     using SGD::step;  // the plain step stays visible beside the one below
//     torch::Tensor step(const accelerant::AmpStepControls& controls) override { ... }
//   };
//
// docs/mixed_precision.md has a whole one.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerant {

// What an AMP-aware step works with. All tensors are zero-dimensional float32 on the device of the
// scale.
struct AmpStepControls {
  // The gradients must be divided by this. Undefined: they are as they should be.
  at::Tensor grad_scale;

  // 1: change neither parameters nor state nor step count. 0: step. No other value occurs.
  at::Tensor found_inf;
};

class AmpOptimizer {
 public:
  virtual ~AmpOptimizer() = default;

  // Steps as the controls say and returns the loss, if the optimizer has one. Must not wait for the
  // device.
  virtual at::Tensor step(const AmpStepControls& controls) = 0;

  // A factor the program itself has put on the gradients, beside the scaler's: zero-dimensional
  // float32, or undefined for none. GradScaler::step folds it into the controls and clears it; an
  // override of step does not look at it. (PyTorch's fused optimizers call it grad_scale.)
  at::Tensor extra_grad_scale;
};

}  // namespace accelerant
