#include "accelerant/track/timeline.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerant/format/atomic_file.h"
#include "track/trace_writer.h"

namespace accelerant {
namespace {

using track::TraceEvent;

// Small enough that a thread of few events takes little of the bound, large enough that its lock is rare.
constexpr std::size_t kChunkEvents = 1024;

int64_t nanoseconds(Timeline::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t now() { return nanoseconds(Timeline::Clock::now()); }

// The time of day of a moment of Clock, in nanoseconds: what other processes' times can be compared with.
int64_t time_of_day(int64_t moment) {
  const auto day = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(day).count() - (now() - moment);
}

std::string system_name_of_thread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 ? name : "thread";
}

std::atomic<uint64_t> timelines = 0;

struct Chunk {
  explicit Chunk(std::size_t size) : events(std::make_unique<TraceEvent[]>(size)), capacity(size) {}
  std::unique_ptr<TraceEvent[]> events;
  std::size_t capacity;
  std::atomic<std::size_t> count = 0;  // of those that other threads may read
};

}  // namespace

// What one thread has recorded. Only that thread writes to it; under the mutex where others read the same.
struct Timeline::Thread {
  explicit Thread(State& all) : state(all) {}

  void append(const TraceEvent& event);
  bool grow();
  // Brings it to the recording that runs, whose number is returned.
  uint64_t keep_up();
  void count(uint8_t phase, int64_t duration) {
    const auto index = static_cast<std::size_t>(phase);
    time[index].store(time[index].load(std::memory_order_relaxed) + duration,
                      std::memory_order_relaxed);
    entered[index].store(entered[index].load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }

  State& state;
  int64_t id = gettid();
  std::string name = system_name_of_thread();
  bool has_ended = false;
  uint64_t recording = 0;  // whose events these are
  std::vector<std::unique_ptr<Chunk>> chunks;

  // Of this thread only.
  Chunk* chunk = nullptr;
  Span* innermost = nullptr;  // phase that is under way

  std::atomic<int64_t> dropped = 0;
  std::array<std::atomic<int64_t>, kPhases> time = {};  // nanoseconds
  std::array<std::atomic<int64_t>, kPhases> entered = {};
};

struct Timeline::State {
  explicit State(TimelineOptions given)
      : options(std::move(given)), max_events(options.max_events) {}

  const char* keep(SpanName name) {
    if (name.is_literal()) return name.text().data();
    const std::lock_guard lock(mutex);
    return names.emplace(name.text()).first->c_str();
  }

  // Those of the recording. Under the mutex.
  template <class F>
  void for_each_thread(F&& f) const {
    for (const auto& thread : threads) {
      if (thread->recording == recording.load(std::memory_order_relaxed)) f(*thread);
    }
  }

  int64_t dropped_events() const {
    int64_t dropped = 0;
    for_each_thread([&](const Thread& thread) { dropped += thread.dropped.load(); });
    return dropped;
  }

  PhaseTimes times() const;
  track::TraceHead head() const;
  void write(const std::function<void(std::string_view)>& sink) const;

  const uint64_t id = ++timelines;
  const TimelineOptions options;

  std::atomic<uint64_t> recording = 0;  // how often it was started
  std::atomic<std::size_t> max_events;
  std::atomic<std::size_t> claimed = 0;  // by chunks

  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Thread>> threads;
  std::unordered_set<std::string> names;
  int64_t begin = now();
  int64_t end = begin;
  bool is_running = false;
};

namespace {

// The timelines that this thread has recorded to. Plain variables for the one it used last, as every span asks.
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
  ~Memberships() {
    last_timeline = 0;
    for (const Membership& membership : all) {
      if (const auto living = membership.state.lock()) membership.leave();
    }
  }
};
thread_local Memberships memberships;

}  // namespace

void Timeline::Thread::append(const TraceEvent& event) {
  if (chunk == nullptr || chunk->count.load(std::memory_order_relaxed) == chunk->capacity) {
    if (!grow()) {
      dropped.store(dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
  }
  const std::size_t used = chunk->count.load(std::memory_order_relaxed);
  chunk->events[used] = event;
  chunk->count.store(used + 1, std::memory_order_release);
}

bool Timeline::Thread::grow() {
  const std::size_t most = state.max_events.load(std::memory_order_relaxed);
  std::size_t before = state.claimed.load(std::memory_order_relaxed);
  std::size_t size = 0;
  do {
    if (before >= most) return false;
    size = std::min(kChunkEvents, most - before);
  } while (!state.claimed.compare_exchange_weak(before, before + size));
  auto made = std::make_unique<Chunk>(size);
  const std::lock_guard lock(state.mutex);
  chunk = chunks.emplace_back(std::move(made)).get();
  return true;
}

uint64_t Timeline::Thread::keep_up() {
  if (recording == state.recording.load(std::memory_order_acquire)) return recording;
  const std::lock_guard lock(state.mutex);
  recording = state.recording.load(std::memory_order_relaxed);
  chunks.clear();
  chunk = nullptr;
  dropped = 0;
  for (auto& each : time) each = 0;
  for (auto& each : entered) each = 0;
  return recording;
}

PhaseTimes Timeline::State::times() const {
  PhaseTimes busiest;
  int64_t most = 0;
  for_each_thread([&](const Thread& thread) {
    PhaseTimes times;
    int64_t sum = 0;
    for (std::size_t i = 0; i < kPhases; ++i) {
      const int64_t duration = thread.time[i].load(std::memory_order_relaxed);
      times.seconds[i] = static_cast<double>(duration) * 1e-9;
      times.counts[i] = thread.entered[i].load(std::memory_order_relaxed);
      sum += duration;
    }
    if (sum > most) busiest = times;
    most = std::max(most, sum);
  });
  busiest.total = static_cast<double>((is_running ? now() : end) - begin) * 1e-9;
  return busiest;
}

track::TraceHead Timeline::State::head() const {
  return {.rank = options.rank,
          .process_name = options.process_name.empty() ? "rank " + std::to_string(options.rank)
                                                       : options.process_name,
          .begin = begin,
          .time_of_day = time_of_day(begin),
          .dropped = dropped_events(),
          .times = times()};
}

void Timeline::State::write(const std::function<void(std::string_view)>& sink) const {
  const std::lock_guard lock(mutex);  // names and chunks stay while they are read
  track::TraceWriter writer(head(), sink);
  std::vector<TraceEvent> events;
  for_each_thread([&](const Thread& thread) {
    events.clear();
    for (const auto& chunk : thread.chunks) {
      const std::size_t count = chunk->count.load(std::memory_order_acquire);
      events.insert(events.end(), chunk->events.get(), chunk->events.get() + count);
    }
    writer.add_thread(thread.id, thread.name, events);
  });
  writer.finish();
}

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {
      "data",     "transfer", "forward", "evaluation", "backward", "reduction",
      "exchange", "clip",     "step",    "zero_grad",  "schedule", "save"};
  return names[static_cast<std::size_t>(phase)];
}

Timeline::Timeline(TimelineOptions options) : state_(std::make_shared<State>(std::move(options))) {}

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
  // Threads that live drop their events themselves, as they may be writing one.
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
    : thread_(&timeline.this_thread()),
      name_(timeline.state_->keep(name)),
      category_(timeline.state_->keep(category)),
      recording_(thread_->keep_up()) {
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
  const bool is_phase = phase_ != kNoPhase;
  if (is_phase) thread.innermost = outer_;
  if (recording_ != thread.keep_up()) return;
  if (is_phase) {
    thread.count(phase_, duration - in_phases_);
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
