// Shows where the time of a training run goes. While the scope lives, the phases of the training
// (see track/timeline.h) are recorded. At the end, one line gives their shares, and a file shows
// each of them:
//
//   {
//     auto profile = accelerator.profile({.output_trace_dir = "traces"});
//     for (auto&& [data, target] : loader) { ... }
//   }
//   // time of 1,234 updates: 12 % data, 30 % forward, 45 % backward, 5 % reduction, 8 % step;
//   // 3.2 ms per update
//
// In a long run, record only some steps, counted by step():
//
//   auto profile = accelerator.profile(
//       {.schedule_option = accelerant::ProfileSchedule{.wait = 100, .active = 10},
//        .output_trace_dir = "traces"});
//   for (auto&& batch : loader) { ...; profile.step(); }
//
// Profiling exchanges nothing between processes and does not wait for a GPU, so spans on a GPU show
// how long the host took to submit the work. Use with_kernels to see the work itself. See
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

// Only one scope per Accelerator at a time. The Accelerator must outlive it. Use it from the
// training thread.
class [[nodiscard]] ProfileScope {
 public:
  // Ends the recording unless finish() has done so. Failures are logged.
  ~ProfileScope();
  ProfileScope(ProfileScope&&) noexcept;
  ProfileScope& operator=(ProfileScope&&) = delete;

  // Marks the end of a training step. Required with a schedule; otherwise it only marks the steps
  // in the file.
  void step();

  // Ends the recording and writes the file and the summary. Further calls do nothing. Throws Error
  // if a file cannot be written.
  void finish();

  // The current recording, or the last one.
  const Timeline& timeline() const;

  int64_t step_num() const;  // calls of step() so far
  int64_t cycles() const;    // completed recordings

  // The times of all recordings of this scope.
  PhaseTimes phase_times() const;

  // One line. Ends with the number of updates that were skipped since gradients were inf or nan, if
  // there were any, as far as the host knows.
  std::string summary() const;

 private:
  friend class Accelerator;
  ProfileScope(const std::shared_ptr<detail::Core>& core, ProfileOptions options);

  void begin_recording();
  void end_recording();

  struct State;
  std::unique_ptr<State> state_;  // null: moved from, or finished without having begun
};

}  // namespace accelerant
