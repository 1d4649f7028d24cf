// Records when things happen: spans of time with a name, by thread, in a file that Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open.
//
//   accelerant::Timeline timeline;
//   timeline.start();
//   for (auto& image : images) {
//     const auto span = timeline.span("augment");   // until the end of the scope
//     ...
//   }
//   timeline.write("trace.json");
//
// An Accelerator has its own, which accelerator.profile() starts (see accelerator/profile.h and
// docs/profiling.md). A span costs one relaxed load while the timeline is off. While it is on, a
// span takes no lock: every thread writes to its own memory. All functions may be called from any
// thread at any time. The timeline must outlive its spans. Needs no torch.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace accelerant {

// The parts of a training whose times are added up, so that a summary can tell where the time went.
enum class Phase : uint8_t {
  data,        // waiting for the next batch
  transfer,    // bringing it to the device, inside `data`
  forward,     // forward of a prepared model with gradients
  evaluation,  // forward of a prepared model without gradients, and loops of such forwards
  backward,    //
  reduction,   // waiting for the gradients of other processes, at the end of `backward`
  exchange,    // any other exchange between processes: gather, reduce, barrier, ...
  clip,        // clipping gradients
  step,        // an update by an optimizer
  zero_grad,   //
  schedule,    // a step of a schedule
  save,        // saving, as long as the training waits for it
};
constexpr std::size_t kPhases = 12;

// "data", "transfer", ...
const char* name_of(Phase phase);

struct TimelineOptions {
  // Which process this is. Default: 0, the only one.
  int64_t rank = 0;

  // How the viewer names the process. Default: "rank <rank>".
  std::string process_name = {};

  // The largest number of events to keep, of all threads together. Later ones are counted and
  // dropped, but still add to the times of phases. Each takes 40 bytes. 0: only these times.
  // Default: one million.
  std::size_t max_events = 1'000'000;
};

// Where the time of the busiest thread went, in seconds. A phase inside another counts only for
// itself: the time of `backward` does not include that of `reduction`. Exchanges inside `data` and
// `save` count for those. Everything between two forwards without gradients counts for
// `evaluation`, if there was no training in between: loading batches, metrics, exchanges.
struct PhaseTimes {
  std::array<double, kPhases> seconds = {};
  std::array<int64_t, kPhases> counts = {};  // how often each was entered
  double total = 0;                          // from start() to stop(), or to now

  double of(Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  int64_t count(Phase phase) const { return counts[static_cast<std::size_t>(phase)]; }
};

// One line: "time of 1,234 updates: 12 % data, 30 % forward, 45 % backward, 5 % reduction, 8 % step;
// 3.2 ms per update". Updates are steps of optimizers. The shares are of the whole time; the time
// per update leaves `evaluation` out, and then says so. What is in no phase, and phases below 0.5 %,
// are "other".
std::string summary_line(const PhaseTimes& times);

// The name of a span. Literals are kept as they are. Other texts are copied under a lock when the
// span begins, if the timeline is on.
class SpanName {
 public:
  template <std::size_t size>
  consteval SpanName(const char (&literal)[size]) : text_(literal, size - 1), is_literal_(true) {}
  SpanName(std::string_view text) : text_(text) {}
  SpanName(const std::string& text) : text_(text) {}

  // For text that lives as long as the program and ends with a zero.
  static SpanName lasting(const char* text) {
    SpanName name{std::string_view(text)};
    name.is_literal_ = true;
    return name;
  }

  std::string_view text() const { return text_; }
  bool is_literal() const { return is_literal_; }

 private:
  std::string_view text_;
  bool is_literal_ = false;
};

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  class Span;

  explicit Timeline(TimelineOptions options = {});
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Forgets what was recorded and starts recording. `max_events`: a new limit from now on.
  void start();
  void start(std::size_t max_events);

  // Stops recording and keeps what was recorded. Open spans are still recorded when they end.
  void stop();
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  // A span from now until the end of the object's scope, or its end(). Spans of a thread must end in
  // the reverse order of their beginning. One that is open when start() is called is not recorded.
  [[nodiscard]] Span span(SpanName name, SpanName category = "user");
  [[nodiscard]] Span span(Phase phase);
  [[nodiscard]] Span span(Phase phase, SpanName name);

  // A span of this thread that has already ended, by times of Clock. It must lie inside the span
  // that is open now.
  void add(Phase phase, Clock::time_point from, Clock::time_point to);
  void add(SpanName name, SpanName category, Clock::time_point from, Clock::time_point to);

  // A moment, and a number that changes over time.
  void instant(SpanName name, SpanName category = "user");
  void counter(SpanName name, double value);

  // How the viewer names the calling thread. Default: the system's name for it.
  void name_thread(const std::string& name);

  PhaseTimes phase_times() const;

  // How many events were kept, and how many were dropped.
  int64_t events() const;
  int64_t dropped() const;

  // Everything recorded so far, except spans that have not ended. The file is complete or not there
  // at all; its folder must exist. Throws Error if it cannot be written.
  void write(const std::string& path) const;
  std::string to_json() const;

 private:
  struct Thread;
  struct State;

  Thread& this_thread() const;

  std::atomic<bool> on_ = false;
  std::shared_ptr<State> state_;  // threads that outlive the Timeline check whether it still exists
};

class [[nodiscard]] Timeline::Span {
 public:
  Span() = default;  // records nothing
  ~Span() {
    if (thread_ != nullptr) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // Ends the span before its scope does. Further calls do nothing. Call it in the thread that began
  // the span.
  void end();

 private:
  friend class Timeline;
  static constexpr uint8_t kNoPhase = 255;

  Span(const Timeline& timeline, SpanName name, SpanName category, uint8_t phase);

  Thread* thread_ = nullptr;  // null: not recorded
  const char* name_ = nullptr;
  const char* category_ = nullptr;
  uint64_t recording_ = 0;  // the number of the start() it belongs to
  int64_t start_ = 0;
  int64_t in_phases_ = 0;  // time of the phases inside it
  Span* outer_ = nullptr;  // the phase around it
  uint8_t phase_ = kNoPhase;
};

inline Timeline::Span Timeline::span(SpanName name, SpanName category) {
  if (!is_on()) return {};
  return Span(*this, name, category, Span::kNoPhase);
}

inline Timeline::Span Timeline::span(Phase phase) {
  if (!is_on()) return {};
  return Span(*this, SpanName::lasting(name_of(phase)), "phase", static_cast<uint8_t>(phase));
}

inline Timeline::Span Timeline::span(Phase phase, SpanName name) {
  if (!is_on()) return {};
  return Span(*this, name, "phase", static_cast<uint8_t>(phase));
}

}  // namespace accelerant
