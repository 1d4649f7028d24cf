// The step of a torch::optim optimizer in two kernels: one reads all gradients once (norm, inf and
// nan), one unscales, clips, decays and updates, whatever the number of tensors. Gradients are not
// written, and nothing waits for the device.
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
// Without a scaler: clip_grad_norm_(1.0) and step(). On the CPU the same two passes run over blocks
// that stay in the cache; a step without clipping and scaler is one pass.
//
// The optimizer is borrowed and stays in charge: its options (a learning rate that a schedule
// sets), its param groups and its state are what counts. The moments are the tensors in its
// state(); only the step counts are kept on the device and are behind in state() until sync().
// Saving by optimizer_state_dict() and loading by load_optimizer_state_dict() do that by
// themselves; call sync() before torch::save. To change state() by hand, or to step the optimizer
// by itself, call sync() before and reload() after. Added groups, replaced parameters and
// torch::load are noticed.
//
// Gradients that the kernels cannot read (sparse ones, other devices) make a step fall back to the
// optimizer's own; the log says so once. Values are those of Python's fused optimizers to the last
// digits; see docs/parity.md.
//
// One thread at a time, all calls on one stream.
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
  // Keep a float32 copy of 16-bit parameters, and float32 moments: the copy is what is updated, and
  // the 16-bit parameter is its rounded image, written by the same kernel. Without it 16-bit
  // parameters are updated as they are, as Python does. The copy is saved with the state, as
  // "master_param". Default: no.
  bool master_weights = false;

  // Go up the gradient instead of down. Default: no.
  bool maximize = false;
};

class FusedStep final {
 public:
  // Why the optimizer cannot be stepped here; empty if it can. Those of the classes
  // torch::optim::SGD, Adam, AdamW, Adagrad, RMSprop and optim::Lion themselves (not of classes
  // derived from them, whose step may be another), with all parameters on one CPU or CUDA device,
  // can.
  static std::optional<std::string> why_not(const torch::optim::Optimizer& optimizer);

  // Throws Error if why_not() has a reason. The optimizer must outlive every use of this object.
  // Its end leaves the optimizer alone: call sync() first if the optimizer is to go on by itself.
  explicit FusedStep(torch::optim::Optimizer& optimizer, const FusedStepOptions& options = {});
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  torch::optim::Optimizer& optimizer() const;

  // Steps with the gradients as they are. Parameters without a gradient are left out.
  StepResult step();

  // Steps under the scaler: as scaler.step(optimizer), but the gradients keep their scaled values.
  // With a disabled scaler as step().
  StepResult step(GradScaler& scaler);

  // The optimizer's own step, which calls the closure.
  StepResult step(const std::function<at::Tensor()>& closure);

  // Notes that the next step is to clip the norm of all gradients together to max_norm, and returns
  // that norm as it is before: zero-dimensional float32 on the device. The gradients stay as they
  // are. Called again before the step the smallest limit holds; gradients that change in between
  // are judged anew.
  at::Tensor clip_grad_norm_(double max_norm);

  // The same for gradients that bear the scaler's factor. The limit and the returned norm are of
  // the unscaled ones.
  at::Tensor clip_grad_norm_(double max_norm, GradScaler& scaler);

  // Notes that the gradients are to be multiplied by the factor, before their norm is taken.
  // Several calls multiply. A tensor has one float32 element and is read when the step is.
  void multiply_gradients(double factor);
  void multiply_gradients(const at::Tensor& factor);

  // Whether the kernels can read the gradients there are now. Otherwise the optimizer will step by
  // itself.
  bool can_step();

  // Does to the gradients themselves what was noted for the next step. The loss scale is off them
  // already.
  void write_noted();

  // Whether clipping or a factor was noted.
  bool has_noted() const;

  // The norm of the gradients is to be found anew. Needed only where gradients were dropped and
  // made again since clip_grad_norm_() without a step in between: memory and version may then be
  // the same.
  void note_gradients_changed();

  // Forgets what was noted for a step that will not come.
  void discard();

  // Makes the step counts in the optimizer's state those of the device. Waits for it.
  void sync();

  // The optimizer's state was changed from outside: it is read anew before the next step.
  void reload();

 private:
  friend class FusedStepReplay;
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerant
