#include "accelerant/accelerator/profile.h"

#include <c10/util/StringUtil.h>

#include <memory>
#include <utility>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/kernel_trace.h"
#include "core/files.h"
#include "dist/world_access.h"

namespace accelerant {
namespace {

using Clock = Timeline::Clock;

void check(const ProfileOptions& options) {
  if (options.with_kernels && options.output_trace_dir.empty()) {
    throw Error(ErrorDetails{.problem = "with_kernels needs a folder to write to",
                             .expected = "output_trace_dir",
                             .got = "an empty path"});
  }
  if (!options.schedule_option) return;
  const ProfileSchedule& given = *options.schedule_option;
  if (given.skip_first >= 0 && given.wait >= 0 && given.warmup >= 0 && given.active >= 1 &&
      given.repeat >= 0) {
    return;
  }
  throw Error(ErrorDetails{
      .problem = "The schedule of a profile is out of range",
      .expected = "skip_first, wait, warmup and repeat >= 0, active >= 1",
      .got = c10::str("skip_first = ", given.skip_first, ", wait = ", given.wait, ", warmup = ",
                      given.warmup, ", active = ", given.active, ", repeat = ", given.repeat)});
}

bool records(ProfileAction action) {
  return action == ProfileAction::record || action == ProfileAction::record_and_save;
}

}  // namespace

ProfileAction action_at(const ProfileSchedule& schedule, int64_t step) {
  step -= schedule.skip_first;
  const int64_t cycle = schedule.wait + schedule.warmup + schedule.active;
  if (step < 0 || (schedule.repeat > 0 && step / cycle >= schedule.repeat)) {
    return ProfileAction::none;
  }
  step %= cycle;
  if (step < schedule.wait) return ProfileAction::none;
  if (step < schedule.wait + schedule.warmup) return ProfileAction::warmup;
  return step == cycle - 1 ? ProfileAction::record_and_save : ProfileAction::record;
}

struct ProfileScope::State {
  ProfileAction action_of(int64_t number) const {
    // Without a schedule, the single recording ends with the scope.
    return options.schedule_option ? action_at(*options.schedule_option, number)
                                   : ProfileAction::record;
  }

  std::string file(const char* kind) const {
    return join_path(options.output_trace_dir, c10::str(kind, "_", rank, ".json"));
  }

  // Shows each step above its phases in the viewer.
  void mark_step() {
    const auto now = Clock::now();
    timeline->add(c10::str("step #", steps), "step", std::exchange(step_begin, now), now);
  }

  void note_skips(const detail::Core& now) { skips = now.scaler.status().skips - earlier_skips; }

  std::weak_ptr<detail::Core> core;
  std::shared_ptr<Timeline> timeline;
  ProfileOptions options;
  int64_t rank = 0;
  std::unique_ptr<detail::KernelTrace> kernels = {};  // null without with_kernels
  ProfileAction action = ProfileAction::none;
  Clock::time_point step_begin = {};
  int64_t steps = 0;
  int64_t cycles = 0;
  PhaseTimes earlier = {};  // of completed recordings
  bool is_recording = false;
  bool is_finished = false;
  int64_t earlier_skips = 0;  // before the scope
  int64_t skips = 0;          // in it, so far
  detail::OwnProcess process = {};
};

ProfileScope::ProfileScope(const std::shared_ptr<detail::Core>& core, ProfileOptions options) {
  check(options);
  if (core->open_scopes.profile) {
    throw Error(ErrorDetails{.problem = "A ProfileScope is already open",
                             .expected = "one ProfileScope per Accelerator at a time",
                             .got = "a second one",
                             .hint = "call finish() on the first one"});
  }
  state_ = std::make_unique<State>(State{.core = core,
                                         .timeline = dist::WorldAccess::timeline(*core->world),
                                         .options = std::move(options),
                                         .rank = core->environment.process_index});
  State& state = *state_;
  if (state.options.with_kernels) {
    state.kernels = std::make_unique<detail::KernelTrace>(state.options, *core->options.device);
  }
  state.timeline->name_thread("training");
  state.earlier_skips = core->scaler.status().skips;
  state.action = state.action_of(0);
  if (state.action == ProfileAction::warmup && state.kernels) state.kernels->prepare();
  if (records(state.action)) begin_recording();
  core->open_scopes.profile = true;
}

ProfileScope::ProfileScope(ProfileScope&&) noexcept = default;

ProfileScope::~ProfileScope() {
  if (!state_) return;
  if (!state_->process.is_this_one()) {
    detail::never_destroy(state_.release());
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
}

void ProfileScope::begin_recording() {
  State& state = *state_;
  if (!state.options.output_trace_dir.empty()) make_folders(state.options.output_trace_dir);
  if (state.kernels) state.kernels->start();
  state.timeline->start(state.options.max_events);
  state.step_begin = Clock::now();
  state.is_recording = true;
}

void ProfileScope::end_recording() {
  State& state = *state_;
  if (!std::exchange(state.is_recording, false)) return;
  state.timeline->stop();
  const PhaseTimes times = state.timeline->phase_times();
  for (std::size_t i = 0; i < kPhases; ++i) {
    state.earlier.seconds[i] += times.seconds[i];
    state.earlier.counts[i] += times.counts[i];
  }
  state.earlier.total += times.total;
  ++state.cycles;
  if (const int64_t dropped = state.timeline->dropped(); dropped > 0) {
    log(LogLevel::warning,
        c10::str("the profile is full and misses ", dropped, dropped == 1 ? " event" : " events",
                 "; record fewer steps, or raise max_events"));
  }
  if (!state.options.output_trace_dir.empty()) {
    state.timeline->write(state.file("profile"));
    if (state.kernels) state.kernels->stop(state.file("kernels"));
  }
  if (state.options.on_trace_ready) state.options.on_trace_ready(*this);
}

void ProfileScope::step() {
  State& state = *state_;
  if (state.is_finished) return;
  if (state.is_recording) state.mark_step();
  const ProfileAction before = std::exchange(state.action, state.action_of(++state.steps));
  if (before == ProfileAction::record_and_save) end_recording();
  if (state.action == ProfileAction::warmup && state.kernels) state.kernels->prepare();
  if (records(state.action) && !state.is_recording) begin_recording();
}

void ProfileScope::finish() {
  State& state = *state_;
  if (std::exchange(state.is_finished, true)) return;
  if (const auto core = state.core.lock()) {
    core->open_scopes.profile = false;
    state.note_skips(*core);
  }
  end_recording();
  if (state.options.summary != nullptr && state.rank == 0 && state.cycles > 0) {
    std::fprintf(state.options.summary, "%s\n", summary().c_str());
    std::fflush(state.options.summary);
  }
}

const Timeline& ProfileScope::timeline() const { return *state_->timeline; }
int64_t ProfileScope::step_num() const { return state_->steps; }
int64_t ProfileScope::cycles() const { return state_->cycles; }

PhaseTimes ProfileScope::phase_times() const {
  const State& state = *state_;
  if (!state.is_recording) return state.earlier;
  PhaseTimes times = state.timeline->phase_times();
  for (std::size_t i = 0; i < kPhases; ++i) {
    times.seconds[i] += state.earlier.seconds[i];
    times.counts[i] += state.earlier.counts[i];
  }
  times.total += state.earlier.total;
  return times;
}

std::string ProfileScope::summary() const {
  if (const auto core = state_->core.lock(); core && !state_->is_finished) {
    state_->note_skips(*core);
  }
  const std::string line = summary_line(phase_times());
  return state_->skips > 0 ? c10::str(line, "; ", state_->skips, " skipped") : line;
}

ProfileScope Accelerator::profile() { return profile(options().profile); }

ProfileScope Accelerator::profile(const ProfileOptions& options) { return {core_, options}; }

Timeline& Accelerator::timeline() { return core_->timeline(); }

}  // namespace accelerant
