// What an Accelerator and everything it prepared share. It holds the registries and the rules that
// concern several of them; each prepared object's own behaviour is in its *_state.
#pragma once

#include <any>
#include <memory>
#include <optional>
#include <vector>

#include "accelerant/accelerator/options.h"
#include "accelerant/amp/autocast.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/data/detail/batch_channel.h"
#include "accelerant/data/detail/loader_state.h"
#include "accelerant/watch/environment.h"
#include "accelerant/dist/world.h"
#include "accelerant/track/timeline.h"
#include "accelerator/accumulation.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/registry.h"
#include "accelerator/state/training_progress.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {
struct RateChoice;
}

namespace accelerant::dist {
class Preemption;
}

namespace accelerant::detail {

class ModelState;
class OptimizerState;
class SchedulerState;
class StepRecorder;
struct CaptureStreams;

struct PreparedLoader {
  int64_t number = 0;                      // in the order of preparation
  std::shared_ptr<const void> original;    // kept, so that its address stays its own
  std::weak_ptr<data::LoaderState> state;  // of the prepared one
  std::any handle;                         // a data::Loader<Batch>::Weak
};

struct Core {
  explicit Core(AcceleratorOptions given);
  ~Core();

  WindowRules window_rules() const;

  // Of the loop that is innermost now; none outside of any.
  LoaderProgress loader_progress() const;

  // The autocast that mixed precision asks for; empty without it.
  std::optional<AutocastOptions> autocast_options(const AutocastSettings& settings) const;

  MeanOverProcesses mean_over_processes() const;

  // Ends the scaler's iteration if an optimizer was unscaled or stepped since the last one, no
  // window is still gathering, and no unscaled gradients wait for their step.
  void update_scaler_if_due();

  // Ends it at once. Gradients that were made with the scale before are brought to the new one.
  void update_scaler();

  // The same at a checkpoint, which counts the batch in hand as done: it does not wait for the end of a scope, nor
  // for windows that are half complete.
  void settle_scaler();

  // What the host does when the scaler has been updated.
  void note_scaler_update();

  // Schedules that wait for the device to tell whether an update was made move on now.
  void settle_schedules() const;

  // The rates among which the device chooses, for the next step of an optimizer. Nothing if the optimizer has its
  // rates: then its schedules are settled.
  std::optional<RateChoice> rate_choice_for(const torch::optim::Optimizer& optimizer) const;

  // A loop over a prepared loader begins or ends.
  void note_loop(data::LoaderState& loader, bool active);

  // If the training is to stop, and an update has been made: saves, and throws Preempted.
  void stop_if_preempted();

  // Those of the prepared loaders that are alive.
  std::vector<Registry<data::LoaderState>::Numbered> living_loaders() const;

  // The prepared optimizers that own one of the tensors.
  std::vector<std::shared_ptr<OptimizerState>> owners_of(
      const std::vector<at::Tensor>& tensors) const;

  // Records the phases of the training while profile() is in force.
  Timeline& timeline() const { return *world->timeline(); }

  dist::Environment environment;
  AcceleratorOptions options;
  std::shared_ptr<dist::World> world;                 // connected with several processes
  std::shared_ptr<data::BatchChannel> batch_channel;  // null with one process
  int64_t placed_loaders = 0;                         // so far, the same in all processes
  int64_t prepared_loaders = 0;                       // so far, since free_memory()
  GradScaler scaler;
  Accumulation accumulation;
  bool manual_sync = true;           // sync_gradients for optimizers outside of all windows
  bool scaler_has_checks = false;    // an optimizer was unscaled or stepped since its last update
  int64_t backwards = 0;             // run so far
  int64_t updates = 0;               // steps of optimizers so far
  int64_t loads = 0;                 // states loaded so far, or parts of one
  StepRecorder* recorder = nullptr;  // while a step runs that is or will be captured
  std::shared_ptr<CaptureStreams> capture_streams = nullptr;  // made for the first of them

  // The last backward that exchanged gradients: when it ended, and how long this process had waited for others
  // by then. In seconds.
  std::optional<double> last_backward_end = std::nullopt;
  double waited_at_last_backward = 0;

  bool profiling = false;  // a ProfileScope is in force
  bool trigger = false;
  bool joining = false;  // inside join_uneven_inputs(): not all processes may be there
  bool warned_of_missing_window = false;

  Registry<ModelState> models;
  Registry<OptimizerState> optimizers;
  Registry<SchedulerState> schedulers;
  std::vector<PreparedLoader> loaders;
  std::vector<data::LoaderState*> active_loaders;  // innermost loop last

  // Shared with the loops over epochs, which may outlive the Accelerator.
  std::shared_ptr<TrainingProgress> progress = std::make_shared<TrainingProgress>();

  std::unique_ptr<dist::Preemption> preemption;  // null if signals are not watched
  int64_t updates_seen_by_preemption = 0;

  Checkpoints checkpoints{*this};  // last, so that its saves end before the connections do
};

// The Core of a prepared object; an Error if the Accelerator is gone or has forgotten the object.
std::shared_ptr<Core> require_core(const std::weak_ptr<Core>& core);

// Throws the Error for using an empty handle.
[[noreturn]] void refuse_empty_handle(const char* what);

}  // namespace accelerant::detail
