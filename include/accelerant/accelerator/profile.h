// Where the time of a training goes. While the scope is there, the phases of the training (see
// track/timeline.h) are recorded; at its end a line tells their shares, and a file shows each of
// them:
//
//   {
//     auto profile = accelerator.profile({.output_trace_dir = "traces"});
//     for (auto&& [data, target] : loader) { ... }
//   }
//   // time of 1,234 steps: 12 % data, 30 % forward, 45 % backward, 5 % reduction, 8 % step;
//   // 3.2 ms a step
//
// Of a long training only some steps, which the loop counts:
//
//   auto profile = accelerator.profile(
//       {.schedule_option = accelerant::ProfileSchedule{.wait = 100, .active = 10},
//        .output_trace_dir = "traces"});
//   for (auto&& batch : loader) { ...; profile.step(); }
//
// Nothing is exchanged between processes and nothing waits for a GPU, so spans on a GPU show how
// long the host took to hand the work over; with_kernels shows the work itself. See
// docs/profiling.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accelerant/accelerator/options.h"
#include "accelerant/track/timeline.h"

namespace accelerant {

class Accelerator;
namespace detail {
struct Core;
}

// One at a time of an Accelerator, which must outlive it. Belongs to the thread of the training.
class [[nodiscard]] ProfileScope {
 public:
  // Ends the recording, if finish() has not. What goes wrong is logged.
  ~ProfileScope();
  ProfileScope(ProfileScope&&) noexcept;
  ProfileScope& operator=(ProfileScope&&) = delete;

  // A step of the training has ended. Needed with a schedule, else it only marks the steps in the
  // file.
  void step();

  // Ends the recording, writes the file and the summary. Further calls do nothing. Throws Error if
  // a file cannot be written.
  void finish();

  // What is recorded, or was last.
  const Timeline& timeline() const;

  int64_t step_num() const;  // calls of step() so far
  int64_t cycles() const;    // recordings that are complete

  // Of all recordings of this scope.
  PhaseTimes phase_times() const;
  std::string summary() const { return summary_line(phase_times()); }

 private:
  friend class Accelerator;
  ProfileScope(const std::shared_ptr<detail::Core>& core, ProfileOptions options);

  void begin_recording();
  void end_recording();

  struct State;
  std::unique_ptr<State> state_;  // null: moved from, or finished without having begun
};

}  // namespace accelerant
