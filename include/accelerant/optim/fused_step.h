// The step of a torch::optim optimizer in two kernels, whatever the number of tensors: one reads
// all gradients once (norm, inf and nan), the other unscales, clips, decays and updates. Gradients
// are not written, and nothing waits for the device.
//
//   torch::optim::AdamW adamw(net->parameters(), 3e-4);
//   accelerant::FusedStep fused(adamw);
//   ...
//   scaler.scale(loss).backward();
//   at::Tensor norm = fused.clip_grad_norm_(1.0, scaler);  // of unscaled gradients, on the device
//   auto result = fused.step(scaler);  // changes nothing if a gradient is inf or nan
//   scaler.update();
//   adamw.zero_grad();
//
// Without a scaler: clip_grad_norm_(1.0) and step(). On the CPU, the same two passes run over
// blocks that stay in the cache; a step without clipping and scaler is one pass.
//
// The optimizer is borrowed and remains in charge: its options (such as a learning rate set by a
// schedule), its param groups and its state count. The moments are the tensors in its state(). Only
// the step counts are kept on the device, and lag behind in state() until sync().
// optimizer_state_dict() and load_optimizer_state_dict() handle that themselves; call sync() before
// torch::save. To change state() yourself, or to step the optimizer directly, call sync() before
// and reload() after. Added groups, replaced parameters and torch::load are detected.
//
// If the kernels cannot read the gradients (sparse, or on other devices), the step falls back to
// the optimizer's own; this is logged once. Results match Python's fused optimizers up to rounding
// in the last digits; see docs/parity.md.
//
// Use it from one thread at a time, with all calls on one stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "accelerant/amp/step_result.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {

class GradScaler;

struct FusedStepOptions {
  // Keep a float32 copy of 16-bit parameters, and float32 moments. The copy is updated, and the
  // same kernel writes its rounded values to the 16-bit parameter. Otherwise 16-bit parameters are
  // updated directly, as in Python. The copy is saved with the state, as "master_param". Default:
  // false.
  bool master_weights = false;

  // Ascend the gradient instead of descending it. Default: false.
  bool maximize = false;

  // Keep the optimizer's state and master copies in host memory and compute the update there, with
  // the kernels for the CPU. Parameters may be on any device. Those on a GPU also get an image in
  // pinned host memory, of their own type, from which the updated values are sent back; gradients
  // on a GPU are fetched. Each step then waits for the GPU. Sparse gradients and closures are an
  // Error. Default: false.
  bool on_host = false;
};

class FusedStep final {
 public:
  // Why the optimizer cannot be stepped here; empty if it can. It can if its class is exactly
  // torch::optim::SGD, Adam, AdamW, Adagrad, RMSprop or optim::Lion (derived classes may step
  // differently), and all parameters are on one CPU or CUDA device (with `on_host`: anywhere).
  static std::optional<std::string> why_not(const torch::optim::Optimizer& optimizer,
                                            const FusedStepOptions& options = {});

  // Throws Error if why_not() returns a reason. The optimizer must outlive every use of this
  // object. The destructor does not touch the optimizer: call sync() first to continue with the
  // optimizer alone.
  explicit FusedStep(torch::optim::Optimizer& optimizer, const FusedStepOptions& options = {});
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  torch::optim::Optimizer& optimizer() const;

  // Steps with the gradients as they are. Parameters without a gradient are skipped.
  StepResult step();

  // Steps under the scaler: like scaler.step(optimizer), but the gradients keep their scaled
  // values. With a disabled scaler, like step().
  StepResult step(GradScaler& scaler);

  // The optimizer's own step, which calls the closure.
  StepResult step(const std::function<at::Tensor()>& closure);

  // Makes the next step clip the norm of all gradients together to max_norm, and returns the norm
  // before clipping: zero-dimensional float32 on the device. The gradients are unchanged. If called
  // again before the step, the smallest limit applies; gradients that changed in between are
  // measured again.
  at::Tensor clip_grad_norm_(double max_norm);

  // The same for gradients that include the scaler's factor. The limit and the returned norm refer
  // to the unscaled gradients.
  at::Tensor clip_grad_norm_(double max_norm, GradScaler& scaler);

  // Makes the next step multiply the gradients by the factor, before their norm is computed.
  // Several calls multiply. A tensor must have one float32 element; it is read during the step.
  void multiply_gradients(double factor);
  void multiply_gradients(const at::Tensor& factor);

  // Whether the kernels can read the current gradients. If not, the optimizer steps itself.
  bool can_step();

  // Applies to the gradients themselves what is pending for the next step. The loss scale must
  // already be removed.
  void write_noted();

  // Whether clipping or a factor is pending.
  bool has_noted() const;

  // Forces the norm of the gradients to be computed again. Only needed if gradients were dropped
  // and recreated since clip_grad_norm_() without a step in between: they may then have the same
  // memory and version.
  void note_gradients_changed();

  // Drops what is pending for a step that will not happen.
  void discard();

  // Copies the step counts from the device to the optimizer's state. Waits for the device.
  void sync();

  // Call it after changing the optimizer's state from outside: the next step reads it again.
  void reload();

 private:
  friend class EarlyUpdate;
  friend class FusedStepReplay;
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerant
