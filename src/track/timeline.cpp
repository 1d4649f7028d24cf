#include "accelerant/track/timeline.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "core/atomic_file.h"
#include "track/timeline_state.h"

namespace accelerant {

using track::nanoseconds;
using track::now;
using track::TraceEvent;

namespace {

// The timelines that this thread has recorded to. The one it used last is in plain variables, since
// every span asks for it.
thread_local uint64_t last_timeline = 0;
thread_local void* last_thread = nullptr;

struct Membership {
  uint64_t timeline;
  void* thread;
  std::weak_ptr<void> state;
  std::function<void()> leave;
};

struct Memberships {
  std::vector<Membership> all;
  detail::OwnProcess process;
  ~Memberships() {
    last_timeline = 0;
    if (!process.is_this_one()) return;
    for (const Membership& membership : all) {
      if (const auto living = membership.state.lock()) membership.leave();
    }
  }
};
thread_local Memberships memberships;

}  // namespace

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {
      "data",     "transfer", "forward", "evaluation", "backward", "reduction",
      "exchange", "clip",     "step",    "zero_grad",  "schedule", "save"};
  return names[static_cast<std::size_t>(phase)];
}

Timeline::Timeline(TimelineOptions options)
    : state_(detail::make_shared_for_process<State>(std::move(options))) {}

Timeline::~Timeline() = default;

Timeline::Thread& Timeline::this_thread() const {
  if (last_timeline == state_->id) return *static_cast<Thread*>(last_thread);
  auto& all = memberships.all;
  std::erase_if(all, [](const Membership& each) { return each.state.expired(); });
  auto known = std::ranges::find(all, state_->id, &Membership::timeline);
  if (known == all.end()) {
    auto made = std::make_unique<Thread>(*state_);
    Thread* thread = made.get();
    const std::lock_guard lock(state_->mutex);
    state_->threads.push_back(std::move(made));
    all.push_back({state_->id, thread, state_, [thread] {
                     const std::lock_guard leaving(thread->state.mutex);
                     thread->has_ended = true;
                   }});
    known = all.end() - 1;
  }
  last_timeline = state_->id;
  last_thread = known->thread;
  return *static_cast<Thread*>(last_thread);
}

void Timeline::start() { start(state_->max_events); }

void Timeline::start(std::size_t max_events) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  state.recording.fetch_add(1, std::memory_order_release);
  state.max_events = max_events;
  state.claimed = 0;
  state.names.clear();
  // Living threads drop their events themselves, since they may be writing one.
  std::erase_if(state.threads, [](const auto& thread) { return thread->has_ended; });
  state.begin = now();
  state.is_running = true;
  on_ = true;
}

void Timeline::stop() {
  const std::lock_guard lock(state_->mutex);
  on_ = false;
  if (std::exchange(state_->is_running, false)) state_->end = now();
}

Timeline::Span::Span(const Timeline& timeline, SpanName name, SpanName category, uint8_t phase)
    : thread_(&timeline.this_thread()), recording_(thread_->keep_up()) {
  // After keep_up: another thread may start a recording, which drops the names of the one before.
  name_ = timeline.state_->keep(name);
  category_ = timeline.state_->keep(category);
  Span*& innermost = thread_->innermost;
  const auto waits = static_cast<uint8_t>(Phase::exchange);
  const bool is_part = phase == waits && innermost != nullptr &&
                       (innermost->phase_ == static_cast<uint8_t>(Phase::data) ||
                        innermost->phase_ == static_cast<uint8_t>(Phase::save));
  if (phase != kNoPhase && !is_part) {
    phase_ = phase;
    outer_ = std::exchange(innermost, this);
  }
  start_ = now();
}

void Timeline::Span::end() {
  if (thread_ == nullptr) return;
  const int64_t duration = now() - start_;
  Thread& thread = *std::exchange(thread_, nullptr);
  if (!thread.process.is_this_one()) return;
  const bool is_phase = phase_ != kNoPhase;
  if (is_phase) thread.innermost = outer_;
  if (recording_ != thread.keep_up()) return;
  if (is_phase) {
    thread.count(phase_, duration - in_phases_);
    if (phase_ == static_cast<uint8_t>(Phase::evaluation) && outer_ == nullptr) {
      thread.count_evaluation(start_, start_ + duration);
    }
    if (outer_ != nullptr) outer_->in_phases_ += duration;
  }
  thread.append({.name = name_, .category = category_, .start = start_, .duration = duration});
}

void Timeline::add(Phase phase, Clock::time_point from, Clock::time_point to) {
  if (!is_on()) return;
  Thread& thread = this_thread();
  thread.keep_up();
  const int64_t duration = std::max<int64_t>(0, nanoseconds(to) - nanoseconds(from));
  thread.count(static_cast<uint8_t>(phase), duration);
  if (thread.innermost != nullptr) thread.innermost->in_phases_ += duration;
  thread.append({.name = name_of(phase),
                 .category = "phase",
                 .start = nanoseconds(from),
                 .duration = duration});
}

void Timeline::add(SpanName name, SpanName category, Clock::time_point from, Clock::time_point to) {
  if (!is_on()) return;
  Thread& thread = this_thread();
  thread.keep_up();
  thread.append({.name = state_->keep(name),
                 .category = state_->keep(category),
                 .start = nanoseconds(from),
                 .duration = std::max<int64_t>(0, nanoseconds(to) - nanoseconds(from))});
}

void Timeline::instant(SpanName name, SpanName category) {
  if (!is_on()) return;
  Thread& thread = this_thread();
  thread.keep_up();
  thread.append({.kind = TraceEvent::Kind::instant,
                 .name = state_->keep(name),
                 .category = state_->keep(category),
                 .start = now(),
                 .duration = 0});
}

void Timeline::counter(SpanName name, double value) {
  if (!is_on()) return;
  Thread& thread = this_thread();
  thread.keep_up();
  thread.append({.kind = TraceEvent::Kind::counter,
                 .name = state_->keep(name),
                 .category = "counter",
                 .start = now(),
                 .value = value});
}

void Timeline::name_thread(const std::string& name) {
  Thread& thread = this_thread();
  const std::lock_guard lock(state_->mutex);
  thread.name = name;
}

PhaseTimes Timeline::phase_times() const {
  const std::lock_guard lock(state_->mutex);
  return state_->times();
}

int64_t Timeline::events() const {
  const std::lock_guard lock(state_->mutex);
  std::size_t count = 0;
  state_->for_each_thread([&](const Thread& thread) {
    for (const auto& chunk : thread.chunks) count += chunk->count.load();
  });
  return static_cast<int64_t>(count);
}

int64_t Timeline::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped_events();
}

void Timeline::write(const std::string& path) const {
  format::AtomicFile file(path);
  state_->write([&](std::string_view text) { file.write(std::as_bytes(std::span(text))); });
  file.commit();
}

std::string Timeline::to_json() const {
  std::string json;
  state_->write([&](std::string_view text) { json += text; });
  return json;
}

}  // namespace accelerant
