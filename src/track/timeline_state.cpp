#include "track/timeline_state.h"

#include <pthread.h>

#include <algorithm>

namespace accelerant {
namespace {

using track::TraceEvent;

// Small enough that a thread with few events uses little of the limit, large enough that locks are
// rare.
constexpr std::size_t kChunkEvents = 1024;

// The time of day of a moment of Clock, in nanoseconds, comparable between processes.
int64_t time_of_day(int64_t moment) {
  const auto day = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(day).count() -
         (track::now() - moment);
}

}  // namespace

namespace track {

std::string system_name_of_thread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 ? name : "thread";
}

uint64_t next_timeline() {
  static std::atomic<uint64_t> timelines = 0;
  return ++timelines;
}

}  // namespace track

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
  auto made = std::make_unique<track::TraceChunk>(size);
  const std::lock_guard lock(state.mutex);
  chunk = chunks.emplace_back(std::move(made)).get();
  return true;
}

void Timeline::Thread::count_evaluation(int64_t start, int64_t end) {
  const int64_t gap = start - evaluation.last_end;
  int64_t in_phases = 0;
  for (const int64_t duration : evaluation.between) in_phases += duration;
  if (evaluation.is_open && in_phases <= gap) {
    for (std::size_t i = 0; i < kPhases; ++i) add_time(i, -evaluation.between[i]);
    add_time(static_cast<std::size_t>(Phase::evaluation), gap);
  }
  evaluation = {.is_open = true, .last_end = end};
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
  evaluation = {};
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
  busiest.total = static_cast<double>((is_running ? track::now() : end) - begin) * 1e-9;
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

}  // namespace accelerant
