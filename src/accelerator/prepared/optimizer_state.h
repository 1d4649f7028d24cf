// The state behind the handles of one prepared optimizer.
//
// The optimizer follows the window of the latest accumulate() over a model of which it owns a
// parameter. Steps, clipping, unscaling, and schedules that follow it do nothing unless the
// optimizer is at a boundary: its window is complete, or it is in none. Whatever uses gradients
// there first applies the window's correction and then undoes the loss scale, which a fused step
// does while it reads them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "accelerant/accelerator/optimizer.h"
#include "accelerator/core.h"
#include "accelerator/offload/host_gradients.h"
#include "accelerator/offload/update_thread.h"
#include "accelerator/prepared/optimizer_step.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "accelerator/warnings/gradient_watch.h"
#include "accelerator/warnings/optimizer_watch.h"

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

  // The result of the last executed step; empty before the first.
  const std::optional<StepResult>& last_step() const { return last_step_; }
  void set_last_step(StepResult result) { last_step_ = std::move(result); }

  // Whether a step would be executed now.
  bool is_at_boundary() const;

  // Prepares the gradients for the optimizer: applies the window's correction and undoes the loss
  // scale. Only at a boundary; further calls do nothing.
  void finish_gradients();

  // Lets the next step clip, if the model's gradients are exactly the optimizer's and its kind of
  // step supports it. Returns the norm of the gradients, which stay unchanged; otherwise nullopt.
  std::optional<at::Tensor> clip_with_step(const ModelState& model, double max_norm);

  // Copies the step counts from the device to the optimizer.
  void sync() { step_.sync(); }

  // Whether a later step will clip.
  bool has_noted_clipping() const { return step_.has_noted(); }

  // A backward adds to the gradients: discards what is known about them.
  void note_backward();

  // Around every backward of the Accelerator, if the optimizer's state is in host memory: see
  // HostGradients. `window`: the open one, or null.
  void begin_backward();
  void begin_updates(const Window* window);
  void end_backward();

  // Around every backward of the Accelerator: notices mistakes. `window`: the open one, or null.
  void watch_before_backward(const Window* window);
  void watch_after_backward(const Window* window);

  // Parameters or gradients have changed in a way that is fine, for example by loading.
  void restart_watch() {
    watch_.start_over();
    gradient_watch_.start_over();
  }

  // Used gradients are about to be clipped, which is a mistake.
  void note_late_clipping() { gradient_watch_.note_late_clipping(*require_core(core_)); }

  // The scaler was updated.
  void begin_iteration() { stage_ = Stage::ready; }

  // Whether the gradients are unscaled and the step is still to come. The scaler must not be
  // updated then.
  bool awaits_step() const { return stage_ == Stage::unscaled; }
  void give_up_step();

  // Clears the gradients, even if they wait for a step.
  void drop_gradients();

  // Whether the gradients are those of the last step, with nothing added since.
  bool has_used_gradients() const;

  bool has_any_gradients() const { return has_gradients(*optimizer_); }

  // Whether zero_grad() has filled the gradients with zeros and nothing has been added since.
  bool has_cleared_gradients() const;

  // Whether there are gradients that carry the loss scale.
  bool has_scaled_gradients() const;

  // Multiplies the gradients, for example after the loss scale has changed.
  void multiply_gradients(const Correction& correction);

  // A backward outside all windows begins: the optimizer leaves its window if that is complete.
  void leave_complete_window();

  bool owns(const at::Tensor& tensor) const;
  bool owns_any_of(const std::vector<at::Tensor>& tensors) const;

  // Whether the window concerns this optimizer: it owns a parameter of one of the window's models.
  // An optimizer without any model's parameters accepts any window that it is free for.
  bool is_concerned_by(const Window& window) const;

  // Throws Error if the optimizer still waits for another window to be completed. join() makes this
  // window the one it waits for.
  void require_free_for(const Window& window) const;
  void join(std::shared_ptr<Window> window) { window_ = std::move(window); }

  // The last window that concerned it; null before the first.
  const std::shared_ptr<Window>& window() const { return window_; }

  // Samples in the next update, over all processes.
  int64_t samples_of_update() const;

  // Records a step on the host, now or in the replay of a graph.
  void note_stepped(StepResult result);

  // What the host knows of the optimizer between two steps.
  struct Progress;
  Progress progress() const;
  void restore(const Progress& progress);

  // Makes every later use an Error.
  void forget() {
    sync();
    core_.reset();
  }

 private:
  // The optimizer's tensors, and the prepared models they belong to.
  struct Ownership {
    std::unordered_set<const c10::TensorImpl*> tensors = {};
    std::vector<const ModelState*> models = {};
    // Parameters of those models that do not belong to the optimizer.
    std::vector<at::Tensor> others = {};
    // Whether all of the optimizer's tensors are parameters of those models.
    bool has_no_loose_tensors = false;
    // Fingerprint of the tensors and models; if it changes, the rest is computed again.
    std::size_t fingerprint = 0;
    int64_t models_version = -1;
  };

  const Ownership& ownership() const;
  bool is_free_for(const Window& window) const;
  // At the first step. Throws Error unless one of the parameters belongs to a prepared model.
  void check_parameters(Core& core) const;
  // Throws Error if the last backward did not exchange all gradients between processes.
  void require_exchanged() const;
  void correct_gradients();
  void note_unscaled();
  void note_cleared();
  void watch_before_step(Core& core);
  // The same gradients, in memory of the host or of the device.
  void fetch_gradients();
  void take_gradients_back();
  void note_moved_gradients(bool were_used, bool were_cleared);
  void refuse_with_early_updates(const char* what) const;

  std::weak_ptr<Core> core_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  OptimizerStep step_;
  std::unique_ptr<HostGradients> host_gradients_;  // null if the state is beside the parameters
  bool gradients_come_back_ = false;               // several backwards add to them
  int64_t backwards_at_boundary_ = 0;              // since the last step
  std::shared_ptr<UpdateThread> updates_;          // null unless updates begin in backward
  bool in_closure_ = false;
  bool loose_parameters_;
  std::shared_ptr<Window> window_;  // the last one that concerned it; null before the first
  // What has happened to the gradients since the scaler's last update.
  enum class Stage { ready, unscaled, done };
  Stage stage_ = Stage::ready;
  std::optional<StepResult> last_step_;
  // Fingerprints of the gradients after the last step and after the last zero_grad(); 0 if none.
  std::size_t used_gradients_ = 0;
  std::size_t cleared_gradients_ = 0;
  int64_t backwards_at_last_step_ = 0;  // among all backwards of the Accelerator

  OptimizerWatch watch_;
  GradientWatch gradient_watch_;
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
