// What lies behind the handles of one prepared optimizer.
//
// It follows the window of the latest accumulate() over a model of which it owns a parameter.
// Steps, clipping, unscaling, and schedules that follow it, do nothing unless the optimizer is at a
// boundary: its window is complete, or it is in none. Whatever uses gradients there first makes
// them what they should be: the window's correction comes first, then the loss scale, which a fused
// step undoes while it reads them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "accelerant/accelerator/optimizer.h"
#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_step.h"

namespace accelerant::detail {

class OptimizerState {
 public:
  OptimizerState(const std::shared_ptr<Core>& core,
                 std::shared_ptr<torch::optim::Optimizer> optimizer,
                 const PrepareOptimizerOptions& options);

  std::shared_ptr<Core> core() const { return require_core(core_); }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  StepResult step(const std::function<at::Tensor()>& closure);
  void zero_grad(bool set_to_none);

  // How it steps.
  OptimizerStep& stepping() { return step_; }

  // The result of the last step that was executed; none before the first.
  const std::optional<StepResult>& last_step() const { return last_step_; }
  void set_last_step(StepResult result) { last_step_ = std::move(result); }

  // Whether a step would be executed now.
  bool is_at_boundary() const;

  // Makes the gradients what the optimizer will see: the window's correction and the loss scale are
  // undone. Only at a boundary; further calls do nothing.
  void finish_gradients();

  // Clips with the next step, if the gradients of the model are exactly the optimizer's, and its
  // kind of step allows it: the norm of the gradients, which stay as they are. Otherwise nothing.
  std::optional<at::Tensor> clip_with_step(const ModelState& model, double max_norm);

  // The optimizer's step counts become those of the device.
  void sync() { step_.sync(); }

  // A clipped norm was noted for a step that is still to come.
  bool has_noted_clipping() const { return step_.has_noted(); }

  // A backward adds to the gradients: what was found out about them does not hold any more.
  void note_backward() { step_.note_gradients_changed(); }

  // The scaler was updated.
  void begin_iteration() { stage_ = Stage::ready; }

  // Unscaled, and the step is still to come: the scaler must not be updated.
  bool awaits_step() const { return stage_ == Stage::unscaled; }
  void give_up_step();

  // Clears the gradients, whatever they wait for.
  void drop_gradients();

  // The gradients are the ones of the last step, and no other has been added since.
  bool has_used_gradients() const;

  // There are gradients, but zero_grad() has filled them with zeros, and nothing has been added
  // since.
  bool has_cleared_gradients() const;

  // There are gradients that bear the loss scale.
  bool has_scaled_gradients() const;

  // Multiplies the gradients, for example when the loss scale has changed under them.
  void multiply_gradients(const Correction& correction);

  // A backward outside of all windows begins: complete ones do not concern it any more.
  void leave_complete_window();

  bool owns(const at::Tensor& tensor) const;
  bool owns_any_of(const std::vector<at::Tensor>& tensors) const;

  // Whether the window is this optimizer's: it owns a parameter of one of the window's models. An
  // optimizer over tensors of no model takes any window that it is free for.
  bool is_concerned_by(const Window& window) const;

  // The window is the one whose completion the optimizer waits for from now on. An Error if it
  // still waits for another one.
  void require_free_for(const Window& window) const;
  void join(std::shared_ptr<Window> window) { window_ = std::move(window); }

  // The last window that concerned it; null before the first.
  const std::shared_ptr<Window>& window() const { return window_; }

  // Samples that the next update is made from, of all processes.
  int64_t samples_of_update() const;

  // What the host notes of a step, now or in the replay of a graph.
  void note_stepped(StepResult result);

  // What the host knows of it between two steps.
  struct Progress;
  Progress progress() const;
  void restore(const Progress& progress);

  // From now on every use is an Error.
  void forget() {
    sync();
    core_.reset();
  }

 private:
  // Which tensors are the optimizer's, and which prepared models they belong to.
  struct Ownership {
    std::unordered_set<const c10::TensorImpl*> tensors = {};
    std::vector<const ModelState*> models = {};
    // Parameters of those models that are not the optimizer's.
    std::vector<at::Tensor> others = {};
    // All of the optimizer's are parameters of those models.
    bool has_no_loose_tensors = false;
    // What it was made from: made anew when these have changed.
    std::size_t fingerprint = 0;
    int64_t models_version = -1;
  };

  const Ownership& ownership() const;
  bool is_free_for(const Window& window) const;
  void require_prepared_model() const;
  // An Error if the last backward did not exchange all gradients between processes.
  void require_exchanged() const;
  void correct_gradients();
  void note_unscaled();
  void note_cleared();

  std::weak_ptr<Core> core_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  OptimizerStep step_;
  bool in_closure_ = false;
  bool loose_parameters_;
  std::shared_ptr<Window> window_;  // the last one that concerned it; null before the first
  // What has happened to its gradients since the scaler's last update.
  enum class Stage { ready, unscaled, done };
  Stage stage_ = Stage::ready;
  std::optional<StepResult> last_step_;
  // Fingerprints of the gradients after the last step, and after the last zero_grad(); 0: none.
  std::size_t used_gradients_ = 0;
  std::size_t cleared_gradients_ = 0;
  int64_t backwards_at_last_step_ = 0;  // of all that the Accelerator has run

  mutable Ownership ownership_;  // a cache
};

struct OptimizerState::Progress {
  std::shared_ptr<Window> window = {};
  Stage stage = Stage::ready;
  std::optional<StepResult> last_step = std::nullopt;
  bool has_used_gradients = false;
  bool has_cleared_gradients = false;
  int64_t backwards_at_last_step = 0;
};

}  // namespace accelerant::detail
