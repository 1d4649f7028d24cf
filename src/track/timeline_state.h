// What a Timeline holds: the events of each thread, which can be read while threads keep writing.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/track/timeline.h"
#include "track/trace_writer.h"

namespace accelerant {
namespace track {

inline int64_t nanoseconds(Timeline::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

inline int64_t now() { return nanoseconds(Timeline::Clock::now()); }

std::string system_name_of_thread();

// A new number each time.
uint64_t next_timeline();

// Memory for events of one thread, which other threads read up to `count`.
struct TraceChunk {
  explicit TraceChunk(std::size_t size)
      : events(std::make_unique<TraceEvent[]>(size)), capacity(size) {}
  std::unique_ptr<TraceEvent[]> events;
  std::size_t capacity;
  std::atomic<std::size_t> count = 0;  // of those that other threads may read
};

// What a thread has done since its last forward without gradients. A single one may belong to the
// training (of a teacher, of one half of a GAN); several with no training in between are the loop of
// an evaluation.
struct EvaluationLoop {
  void note(Phase phase, int64_t duration) {
    if (phase == Phase::data || phase == Phase::transfer || phase == Phase::exchange) {
      between[static_cast<std::size_t>(phase)] += duration;
    } else if (phase != Phase::evaluation) {
      is_open = false;
    }
  }

  bool is_open = false;  // no training since
  int64_t last_end = 0;  // of that forward
  // Nanoseconds in phases that may be part of the loop.
  std::array<int64_t, kPhases> between = {};
};

}  // namespace track

// What one thread has recorded. Only that thread writes to it, under the mutex if others read the
// same.
struct Timeline::Thread {
  explicit Thread(State& all) : state(all) {}

  void append(const track::TraceEvent& event);
  bool grow();
  // Drops what belongs to an earlier recording. Returns the number of the current one.
  uint64_t keep_up();
  // A phase has ended; `duration` is without that of phases inside of it.
  void count(uint8_t phase, int64_t duration) {
    const auto index = static_cast<std::size_t>(phase);
    add_time(index, duration);
    entered[index].store(entered[index].load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    evaluation.note(static_cast<Phase>(phase), duration);
  }
  // A phase `evaluation` has ended and was counted. What lies between two of them without any
  // training is part of the evaluation too: loading the batch, metrics, their exchange.
  void count_evaluation(int64_t start, int64_t end);

  void add_time(std::size_t index, int64_t duration) {
    time[index].store(time[index].load(std::memory_order_relaxed) + duration,
                      std::memory_order_relaxed);
  }

  State& state;
  detail::OwnProcess process;
  int64_t id = gettid();
  std::string name = track::system_name_of_thread();
  bool has_ended = false;
  uint64_t recording = 0;  // whose events these are
  std::vector<std::unique_ptr<track::TraceChunk>> chunks;

  // Used only by this thread.
  track::TraceChunk* chunk = nullptr;
  Span* innermost = nullptr;  // the current phase
  track::EvaluationLoop evaluation;

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

  const uint64_t id = track::next_timeline();
  const TimelineOptions options;

  std::atomic<uint64_t> recording = 0;  // how often it was started
  std::atomic<std::size_t> max_events;
  std::atomic<std::size_t> claimed = 0;  // by chunks

  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Thread>> threads;
  std::unordered_set<std::string> names;
  int64_t begin = track::now();
  int64_t end = begin;
  bool is_running = false;
};

}  // namespace accelerant
