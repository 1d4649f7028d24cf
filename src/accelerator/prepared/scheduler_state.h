// The state behind the handles of one prepared schedule.
//
// A schedule advances only if its optimizer was updated. Under fp16 the device knows that first, so
// a step of the schedule stays pending until somebody needs the result; then settle() waits for the
// device. A replay of a captured step does not wait. It takes a RateChoice instead: the rates for
// each possible number of skipped updates among the pending ones. The device counts the skips and
// picks the rates.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "accelerant/amp/step_result.h"
#include "accelerant/optim/lr_scheduler.h"
#include "accelerator/core.h"
#include "accelerator/warnings/schedule_watch.h"
#include "optim/fused_step_replay.h"

namespace torch::optim {
class LRScheduler;
}

namespace accelerant::detail {

// A common interface to the kinds of schedules.
class ScheduleAccess {
 public:
  virtual ~ScheduleAccess() = default;

  // The object's address, which identifies it.
  virtual const void* identity() const = 0;

  // The optimizer it was made for; null if unknown.
  virtual torch::optim::Optimizer* optimizer() const = 0;

  // The rates that advance(steps) would set; nullopt if unknown, or if it would set more than
  // rates.
  virtual std::optional<std::vector<double>> rates_after(int64_t /*steps*/) const {
    return std::nullopt;
  }

  // Whether only step(metric) advances it.
  virtual bool needs_metric() const { return false; }

  // The steps that its curve is made for; empty if that is not one of its options.
  virtual std::optional<int64_t> total_steps() const { return std::nullopt; }

  virtual void advance(int64_t steps) = 0;
  virtual void advance_by_metric(double metric) = 0;
  virtual nlohmann::json state_dict() const = 0;
  virtual void load_state_dict(const nlohmann::json& state) = 0;
};

std::unique_ptr<ScheduleAccess> access_to(std::shared_ptr<optim::LrScheduler> scheduler);
std::unique_ptr<ScheduleAccess> access_to(std::shared_ptr<optim::ReduceLrOnPlateau> scheduler);
std::unique_ptr<ScheduleAccess> access_to(torch::optim::LRScheduler& scheduler);

class SchedulerState {
 public:
  SchedulerState(const std::shared_ptr<Core>& core, std::unique_ptr<ScheduleAccess> schedule)
      : core_(core), schedule_(std::move(schedule)) {}

  std::shared_ptr<Core> core() const { return require_core(core_); }

  // The schedule after all steps.
  ScheduleAccess& schedule() {
    settle();
    return *schedule_;
  }

  // Advances if the optimizer was updated. If only the device knows that yet, it advances later:
  // see settle().
  void step();

  // Takes the pending steps. Waits for the device.
  void settle();

  // Takes the pending steps whose outcome the device has already reported. Does not wait.
  void settle_known();

  // Whether there are pending steps.
  bool is_undecided() const { return !pending_.empty(); }

  // For a schedule with pending steps: the rates for each number of skipped updates, and that
  // number on the device. nullopt if the rates are unknown; call settle() then. Queues work on the
  // current stream.
  std::optional<RateChoice> rate_choice();

  // Whether it may set rates of this optimizer.
  bool concerns(const torch::optim::Optimizer& optimizer) const {
    return schedule_->optimizer() == nullptr || schedule_->optimizer() == &optimizer;
  }

  void step(double metric);
  std::vector<double> last_lrs();

  // Whether the program seems to have forgotten to step it.
  bool is_overdue(const Core& core);

  // Makes every later step an Error.
  void forget() { core_.reset(); }

 private:
  // Prepared optimizers that the schedule follows: its own, or all if it is unknown.
  std::vector<std::shared_ptr<OptimizerState>> optimizers(const Core& core) const;

  // A step that is taken if all of these results are updates.
  struct Pending {
    std::vector<StepResult> results = {};
    int64_t steps = 1;
    std::vector<double> rates = {};  // of the optimizer's groups, at the time of step()
    at::Tensor flag = {};            // nonzero if skipped; undefined unless there is a single flag
    bool is_counted = false;         // whether skips_ includes it
  };

  // Takes a step behind the pending ones.
  void take_step();
  void settle_next();
  // The number of pending steps that were skipped: one int64 on the device.
  at::Tensor count_skips();

  // The rates of the schedule's own optimizer; empty if it is unknown.
  std::vector<double> rates() const;

  // Another schedule has changed the rates of its optimizer, so the program did not.
  void note_moved(const torch::optim::Optimizer* optimizer, const std::vector<double>& before,
                  const std::vector<double>& after);

  std::weak_ptr<Core> core_;
  std::unique_ptr<ScheduleAccess> schedule_;
  std::deque<Pending> pending_;  // the oldest first
  at::Tensor skips_;             // int64 on the device: skipped among all counted steps
  int64_t settled_skips_ = 0;    // those among them that are settled
  ScheduleWatch watch_;
};

}  // namespace accelerant::detail
