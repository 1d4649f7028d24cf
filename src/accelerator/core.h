// State shared by an Accelerator and everything it prepared: the registries, and the rules that
// concern several objects. Code for one kind of prepared object is in prepared/, code for the
// training loop in loop/.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerant/accelerator/options.h"
#include "accelerant/amp/autocast.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/core/detail/own_process.h"
#include "accelerant/dist/world.h"
#include "accelerant/track/timeline.h"
#include "accelerant/watch/environment.h"
#include "accelerator/capture/step_capture.h"
#include "accelerator/loop/accumulation.h"
#include "accelerator/loop/nonfinite_stop.h"
#include "accelerator/loop/scaler_updates.h"
#include "accelerator/prepared/loaders.h"
#include "accelerator/prepared/registry.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/state/training_progress.h"
#include "accelerator/warnings/finished_training.h"
#include "accelerator/warnings/loss_watch.h"
#include "accelerator/warnings/skip_watch.h"
#include "accelerator/warnings/warnings.h"
#include "dist/world_access.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {
class Accelerator;
struct RateChoice;
}  // namespace accelerant

namespace accelerant::dist {
class Preemption;
}

namespace accelerant::detail {

class ModelState;
class OptimizerState;
class SchedulerState;

// Counts since the training began.
struct LoopCounts {
  int64_t backwards = 0;
  int64_t updates = 0;     // optimizer steps
  int64_t step_calls = 0;  // of optimizers, steps that were not due included
  // The backwards that had run when a forward in mixed precision may have begun that no Model knows
  // of: in a scope of autocast(), or in the replay of a captured step. -1: never.
  int64_t backwards_at_hidden_forward = -1;
};

// State of backward and of optimizers outside all windows.
struct OutsideWindows {
  bool syncs = true;        // Accelerator::sync_gradients
  bool has_warned = false;  // has warned that there is no window
};

// The last backward that exchanged gradients, in seconds.
struct LastBackward {
  double end = 0;     // when it ended
  double waited = 0;  // how long this process had waited for others by then
};

// Scopes that the program has open.
struct OpenScopes {
  bool profile = false;
  bool join = false;  // join_uneven_inputs(): some processes may have left the loop
};

// Stops the training when the machine is about to be taken away. A training loop over a prepared
// loader checks after each batch (Placement::on_batch_end), but only if there was a new update:
// processes count updates to agree on when to save (dist/preemption.h).
struct PreemptionWatch {
  std::unique_ptr<dist::Preemption> signals;  // null if signals are not watched
  int64_t updates_seen = 0;                   // at the last check
};

// Never destroyed in a forked child (see own_process.h): its saver, its connections and its graphs
// have threads of their own.
struct Core {
  explicit Core(AcceleratorOptions given);
  ~Core();

  WindowRules window_rules() const;

  // Whether gradients carry a loss scale.
  bool scales_loss() const { return options.scaler.enabled && scaler.is_enabled(); }

  // Whether the scaler scales nothing and only looks for gradients that are not finite.
  bool only_guards() const { return !options.scaler.enabled && scaler.is_enabled(); }

  // Autocast options for mixed precision; empty without it.
  std::optional<AutocastOptions> autocast_options(const AutocastSettings& settings) const;

  MeanOverProcesses mean_over_processes() const;

  // Advances the schedules that were waiting for the device to report whether an update was made.
  void settle_schedules() const;

  // The rates from which the device chooses for the next step of an optimizer. Empty if the
  // optimizer already has its rates: its schedules are settled then.
  std::optional<RateChoice> rate_choice_for(const torch::optim::Optimizer& optimizer) const;

  // A loop over a prepared loader begins or ends.
  void note_loop(data::LoaderState& loader, bool active);

  // If the training must stop and an update has been made, saves the state and throws Preempted.
  void stop_if_preempted();

  // The prepared optimizers that own one of the tensors.
  std::vector<std::shared_ptr<OptimizerState>> owners_of(
      const std::vector<at::Tensor>& tensors) const;

  // Calls f with every parameter of the prepared models and optimizers, some of them twice, until f
  // returns true. Returns whether it did.
  bool any_parameter(const std::function<bool(const at::Tensor&)>& f) const;

  // Records the phases of the training while a ProfileScope lives.
  Timeline& timeline() const { return *dist::WorldAccess::timeline(*world); }

  OwnProcess process;
  dist::Environment environment;
  AcceleratorOptions options;
  std::shared_ptr<dist::World> world;  // connected if there are several processes

  Registry<ModelState> models;
  Registry<OptimizerState> optimizers;
  Registry<SchedulerState> schedulers;
  PreparedLoaders loaders;

  // Scales losses, or only guards the steps. Disabled if neither is asked for.
  GradScaler scaler;
  ScalerUpdates scaler_updates{*this};
  NonfiniteStop nonfinite_stop{*this};
  Accumulation accumulation;
  OutsideWindows outside_windows;
  LoopCounts counts;
  std::optional<LastBackward> last_backward = std::nullopt;
  StepCapture capture;

  Warnings warnings;
  LossWatch loss_watch;
  FinishedTraining finished_training;
  SkipWatch skip_watch;

  OpenScopes open_scopes;
  bool trigger = false;  // raised in this process, see Accelerator::set_trigger

  // Shared with the loops over epochs, which may outlive the Accelerator.
  std::shared_ptr<TrainingProgress> progress = std::make_shared<TrainingProgress>();
  PreemptionWatch preemption;
  Checkpoints checkpoints{*this};  // last, so that its saves end before the connections do
};

// The Core of a prepared object. Throws Error if the Accelerator is gone or has forgotten the
// object.
std::shared_ptr<Core> require_core(const std::weak_ptr<Core>& core);

// For tests.
Core& core_of(const Accelerator& accelerator);

// Throws the Error for using an empty handle.
[[noreturn]] void refuse_empty_handle(const char* what);

}  // namespace accelerant::detail
