// What lies behind the handles of one prepared schedule.
//
// A schedule moves on only if its optimizer was updated, and under fp16 the device is the first to
// know. So a step of the schedule may be pending until somebody looks, and then the host waits:
// settle(). A replay of a captured step does not look. It takes a RateChoice: the rates for each
// number of skipped updates among those pending. The device counts the skips and picks the rates.
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
#include "optim/fused_step_replay.h"

namespace torch::optim {
class LRScheduler;
}

namespace accelerant::detail {

// One view of the kinds of schedules there are.
class ScheduleAccess {
 public:
  virtual ~ScheduleAccess() = default;

  // The object itself, to know it again.
  virtual const void* identity() const = 0;

  // The optimizer it was made for; null if it does not tell.
  virtual torch::optim::Optimizer* optimizer() const = 0;

  // The rates that advance(steps) would set; nothing if it cannot be told, or would set more than
  // rates.
  virtual std::optional<std::vector<double>> rates_after(int64_t /*steps*/) const {
    return std::nullopt;
  }

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

  // As it is after all steps.
  ScheduleAccess& schedule() {
    settle();
    return *schedule_;
  }

  // Moves on if updates were made. Where only the device knows that yet, later: see settle().
  void step();

  // Makes up for steps whose outcome only the device knows yet, and so waits for it.
  void settle();

  // The same for those of which the device has told. Does not wait.
  void settle_known();

  // Whether there are steps that are not settled.
  bool is_undecided() const { return !pending_.empty(); }

  // For a schedule that is undecided: the rates for each number of skipped updates, of which the
  // device knows which it is. Nothing if the rates cannot be told: then settle() it. Queues work on
  // the current stream.
  std::optional<RateChoice> rate_choice();

  // Whether it sets rates of the optimizer, as far as it tells.
  bool concerns(const torch::optim::Optimizer& optimizer) const {
    return schedule_->optimizer() == nullptr || schedule_->optimizer() == &optimizer;
  }

  void step(double metric);
  std::vector<double> last_lrs();

  // From now on every step is an Error.
  void forget() { core_.reset(); }

 private:
  // Prepared optimizers the schedule follows: its own, or all if it does not tell which that is.
  std::vector<std::shared_ptr<OptimizerState>> optimizers(const Core& core) const;

  // A step that counts if these are updates.
  struct Pending {
    std::vector<StepResult> results = {};
    int64_t steps = 1;
    std::vector<double> rates = {};  // of the optimizer's groups, when it was asked for
    at::Tensor flag = {};            // not 0 if it was skipped; undefined if there is no one flag
    bool is_counted = false;         // in skips_, if it was skipped
  };

  // Moves on behind those that are not settled.
  void take_step();
  void settle_next();
  // Those among what is pending that were skipped: one int64 on the device.
  at::Tensor count_skips();

  // Of the schedule's own optimizer; none if it does not tell which that is.
  std::vector<double> rates() const;

  // Another schedule has moved the rates of its optimizer: that was not the program.
  void note_moved(const torch::optim::Optimizer* optimizer, const std::vector<double>& before,
                  const std::vector<double>& after);

  std::weak_ptr<Core> core_;
  std::unique_ptr<ScheduleAccess> schedule_;
  std::deque<Pending> pending_;  // the oldest first
  at::Tensor skips_;             // int64 on the device: of those that are or were counted
  int64_t settled_skips_ = 0;    // of those that were
};

}  // namespace accelerant::detail
