// What accelerator.profile() can be told. See profile.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace accelerant {

class ProfileScope;

// Which steps are recorded, as of torch.profiler.schedule: the first `skip_first` are not; then each cycle waits for
// `wait` steps, warms up for `warmup`, and records `active`. Steps are counted by ProfileScope::step().
struct ProfileSchedule {
  int64_t skip_first = 0;  // at least 0
  int64_t wait = 0;        // at least 0
  int64_t warmup = 0;      // at least 0; torch's own profiler starts up in it, see with_kernels
  int64_t active = 1;      // at least 1
  int64_t repeat = 0;      // how many cycles; 0: until the end
};

enum class ProfileAction { none, warmup, record, record_and_save };

// What happens in a step of the schedule, from 0.
ProfileAction action_at(const ProfileSchedule& schedule, int64_t step);

struct ProfileOptions {
  // Default: everything is recorded, from the beginning to the end of the scope.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;

  // Called when a recording is complete: at the end of each cycle, or of the scope. Default: nothing.
  std::function<void(const ProfileScope&)> on_trace_ready = {};

  // Where each process writes `profile_<rank>.json` when a recording is complete, in place of the one before. Made
  // where it is not there. Default: no file.
  std::string output_trace_dir = {};

  // The most events of a recording; see TimelineOptions::max_events. Default: one million.
  std::size_t max_events = 1'000'000;

  // Where the main process writes one line at the end that says where the time went. nullptr: nowhere.
  std::FILE* summary = stderr;

  // Records the operators and kernels too, with torch's own profiler (Kineto), which makes every one of them slower.
  // They go to `kernels_<rank>.json` in output_trace_dir, which is needed. Default: false.
  bool with_kernels = false;

  // With with_kernels: shapes of inputs, allocations of memory, and numbers of operations in that file. Default: false.
  bool record_shapes = false;
  bool profile_memory = false;
  bool with_flops = false;
};

}  // namespace accelerant
