// What an Accelerator and everything it prepared share. It holds the registries and the rules that
// concern several of them; what belongs to one prepared object, to a group of fields here, or to
// the loop, is in prepared/, in the group, or in loop/.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerant/accelerator/options.h"
#include "accelerant/amp/autocast.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/dist/world.h"
#include "accelerant/track/timeline.h"
#include "accelerant/watch/environment.h"
#include "accelerator/capture/step_capture.h"
#include "accelerator/loop/accumulation.h"
#include "accelerator/loop/scaler_updates.h"
#include "accelerator/prepared/loaders.h"
#include "accelerator/prepared/registry.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/state/training_progress.h"
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

// What has happened so far.
struct LoopCounts {
  int64_t backwards = 0;
  int64_t updates = 0;  // steps of optimizers
};

// What holds for backward and for optimizers outside of all windows.
struct OutsideWindows {
  bool syncs = true;        // Accelerator::sync_gradients
  bool has_warned = false;  // that there is no window to accumulate over
};

// The last backward that exchanged gradients, in seconds.
struct LastBackward {
  double end = 0;     // when it ended
  double waited = 0;  // how long this process had waited for others by then
};

// Scopes of the program that are open.
struct OpenScopes {
  bool profile = false;
  bool join = false;  // join_uneven_inputs(): not all processes may be there
};

// Stopping when the machine is to be taken away. A training loop over a prepared loader asks when
// its work with a batch is done (Placement::on_batch_end), but only after a new update: that is
// what processes count to agree on when to save (dist/preemption.h).
struct PreemptionWatch {
  std::unique_ptr<dist::Preemption> signals;  // null if signals are not watched
  int64_t updates_seen = 0;                   // when it was asked about last
};

struct Core {
  explicit Core(AcceleratorOptions given);
  ~Core();

  WindowRules window_rules() const;

  // The autocast that mixed precision asks for; empty without it.
  std::optional<AutocastOptions> autocast_options(const AutocastSettings& settings) const;

  MeanOverProcesses mean_over_processes() const;

  // Schedules that wait for the device to tell whether an update was made move on now.
  void settle_schedules() const;

  // The rates among which the device chooses, for the next step of an optimizer. Nothing if the
  // optimizer has its rates: then its schedules are settled.
  std::optional<RateChoice> rate_choice_for(const torch::optim::Optimizer& optimizer) const;

  // A loop over a prepared loader begins or ends.
  void note_loop(data::LoaderState& loader, bool active);

  // If the training is to stop, and an update has been made: saves, and throws Preempted.
  void stop_if_preempted();

  // The prepared optimizers that own one of the tensors.
  std::vector<std::shared_ptr<OptimizerState>> owners_of(
      const std::vector<at::Tensor>& tensors) const;

  // Calls f with every parameter of the prepared models and optimizers, with some twice, until it
  // returns true, and returns whether it did.
  bool any_parameter(const std::function<bool(const at::Tensor&)>& f) const;

  // Records the phases of the training while profile() is in force.
  Timeline& timeline() const { return *dist::WorldAccess::timeline(*world); }

  dist::Environment environment;
  AcceleratorOptions options;
  std::shared_ptr<dist::World> world;  // connected with several processes

  Registry<ModelState> models;
  Registry<OptimizerState> optimizers;
  Registry<SchedulerState> schedulers;
  PreparedLoaders loaders;

  GradScaler scaler;
  ScalerUpdates scaler_updates{*this};
  Accumulation accumulation;
  OutsideWindows outside_windows;
  LoopCounts counts;
  std::optional<LastBackward> last_backward = std::nullopt;
  StepCapture capture;

  OpenScopes open_scopes;
  bool trigger = false;  // raised in this process, see Accelerator::set_trigger

  // Shared with the loops over epochs, which may outlive the Accelerator.
  std::shared_ptr<TrainingProgress> progress = std::make_shared<TrainingProgress>();
  PreemptionWatch preemption;
  Checkpoints checkpoints{*this};  // last, so that its saves end before the connections do
};

// The Core of a prepared object; an Error if the Accelerator is gone or has forgotten the object.
std::shared_ptr<Core> require_core(const std::weak_ptr<Core>& core);

// For tests.
Core& core_of(const Accelerator& accelerator);

// Throws the Error for using an empty handle.
[[noreturn]] void refuse_empty_handle(const char* what);

}  // namespace accelerant::detail
