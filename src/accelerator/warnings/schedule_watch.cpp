#include "accelerator/warnings/schedule_watch.h"

#include <algorithm>
#include <utility>

#include "accelerator/core.h"
#include "accelerator/prepared/scheduler_state.h"

namespace accelerant::detail {
namespace {

// A schedule of so many steps does not count epochs, so it is due long before the end of the first.
constexpr int64_t kMostEpochs = 1000;
constexpr int64_t kManyUpdates = 100;

// Once may be meant.
constexpr int kRepeats = 2;

}  // namespace

void look_for_missing_schedule_step(Core& core) {
  if (!core.warnings.is_open(&WarningOptions::schedule_steps)) return;
  const auto schedulers = core.schedulers.all();
  const bool is_forgotten = std::ranges::any_of(
      schedulers, [&](const auto& scheduler) { return scheduler->is_overdue(core); });
  if (!is_forgotten) return;
  core.warnings.say(&WarningOptions::schedule_steps,
                    "Optimizers have stepped many times, but a prepared schedule was never "
                    "stepped: the learning rate stays what it is. After optimizer.step(), call "
                    "scheduler.step()");
}

bool ScheduleWatch::is_overdue(const Core& core, std::optional<int64_t> total_steps,
                               bool follows_a_step, std::vector<double> rates) {
  if (!follows_a_step) return false;
  const Begin now{.updates = core.counts.updates,
                  .repeated_loops = core.progress->repeated_loops(),
                  .rates = std::move(rates)};
  if (!begin_) begin_ = now;
  if (now.rates != begin_->rates) return false;  // by another schedule, or by the program
  return now.repeated_loops > begin_->repeated_loops ||
         (now.updates - begin_->updates >= kManyUpdates && total_steps.value_or(0) > kMostEpochs);
}

void ScheduleWatch::before_step(Core& core) {
  // A backward in between is a program that accumulates by hand, with a schedule made in batches.
  const bool repeats = core.counts.updates > 0 && core.counts.updates == updates_ &&
                       core.counts.backwards == backwards_;
  updates_ = core.counts.updates;
  backwards_ = core.counts.backwards;
  if (!repeats || ++repeats_ < kRepeats) return;
  core.warnings.say(
      &WarningOptions::schedule_steps,
      "scheduler.step() was called twice for one update: the learning rate changes sooner than the "
      "schedule says. Call it once after optimizer.step(); with .schedule_unit = "
      "accelerant::ScheduleUnit::call every call counts");
}

}  // namespace accelerant::detail
