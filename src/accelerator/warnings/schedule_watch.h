// Notices a schedule that is never stepped, or more than once for an update.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace accelerant::detail {

struct Core;
class SchedulerState;

// A backward begins: has a schedule been forgotten?
void look_for_missing_schedule_step(Core& core);

// Of one schedule.
class ScheduleWatch {
 public:
  // The program asks it to advance.
  void note_call() { was_called_ = true; }
  bool was_called() const { return was_called_; }

  // It is about to advance after an update.
  void before_step(Core& core);

  // Whether it should have been stepped by now, if it never was. `follows_a_step`: an optimizer that
  // it follows has stepped.
  // `rates`: those of its optimizer, which something else may set.
  bool is_overdue(const Core& core, std::optional<int64_t> total_steps, bool follows_a_step,
                  std::vector<double> rates);

 private:
  // What had happened by the first backward after a step of its optimizer. Before that nobody would
  // step it: another optimizer may train alone, and a resumed training has updates from before.
  struct Begin {
    int64_t updates = 0;
    int64_t repeated_loops = 0;
    std::vector<double> rates = {};
  };

  bool was_called_ = false;
  std::optional<Begin> begin_;
  int64_t updates_ = -1;    // of all optimizers, at the last step
  int64_t backwards_ = -1;  // likewise
  int repeats_ = 0;         // steps without an update in between, so far
};

}  // namespace accelerant::detail
