#include "accelerator/warnings/schedule_watch.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerator/core.h"
#include "accelerator/prepared/scheduler_state.h"

namespace accelerant::detail {
namespace {

// A schedule of so many steps does not count epochs, so it is due long before the end of the first.
constexpr int64_t kMostEpochs = 1000;
constexpr int64_t kManyUpdates = 100;

// Once may be meant.
constexpr int kRepeats = 2;

bool is_overdue(const Core& core, SchedulerState& scheduler) {
  if (scheduler.schedule().needs_metric()) return false;
  if (core.progress->trained_loops() > 0) return true;
  return core.counts.updates >= kManyUpdates &&
         scheduler.schedule().total_steps().value_or(0) > kMostEpochs;
}

}  // namespace

void look_for_missing_schedule_step(Core& core) {
  if (core.counts.schedule_calls > 0 || core.counts.updates == 0) return;
  if (!core.warnings.is_open(&WarningOptions::schedule_steps)) return;
  const auto schedulers = core.schedulers.all();
  const auto forgotten = std::ranges::find_if(
      schedulers, [&](const auto& scheduler) { return is_overdue(core, *scheduler); });
  if (forgotten == schedulers.end()) return;
  core.warnings.say(
      &WarningOptions::schedule_steps,
      c10::str("Optimizers have stepped ", core.counts.updates,
               " times, but a prepared schedule was never stepped: the learning rate stays what it "
               "is. After optimizer.step(), call scheduler.step()"));
}

void ScheduleWatch::before_step(Core& core) {
  const bool repeats = core.counts.updates > 0 && core.counts.updates == updates_;
  updates_ = core.counts.updates;
  if (!repeats || ++repeats_ < kRepeats) return;
  core.warnings.say(
      &WarningOptions::schedule_steps,
      "scheduler.step() was called twice for one update: the learning rate changes sooner than the "
      "schedule says. Call it once after optimizer.step(); with .schedule_unit = "
      "accelerant::ScheduleUnit::call every call counts");
}

}  // namespace accelerant::detail
