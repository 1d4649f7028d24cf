// Notices schedules that are never stepped, or more than once for an update.
#pragma once

#include <cstdint>

namespace accelerant::detail {

struct Core;

// A backward begins: has a schedule been forgotten?
void look_for_missing_schedule_step(Core& core);

// Of one schedule.
class ScheduleWatch {
 public:
  // It is about to advance after an update.
  void before_step(Core& core);

 private:
  int64_t updates_ = -1;  // of all optimizers, at the last step
  int repeats_ = 0;       // steps without an update in between, so far
};

}  // namespace accelerant::detail
