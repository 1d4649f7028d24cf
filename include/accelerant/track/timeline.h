// When what happened: spans of time by name and thread, as a file that Perfetto
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
// An Accelerator has one of its own, which accelerator.profile() starts (see accelerator/profile.h
// and docs/profiling.md). A span costs one relaxed load while the timeline is off. While it is on,
// a span takes no lock: every thread writes to memory of its own. All functions may be called from
// any thread at any time. The timeline must outlive its spans. Knows nothing of torch.
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

// The parts of a training step that are added up, so that a summary can tell where the time went.
enum class Phase : uint8_t {
  data,        // waiting for the next batch
  transfer,    // bringing it to the device, inside of `data`
  forward,     // of a prepared model, with gradients
  evaluation,  // of a prepared model, without
  backward,    //
  reduction,   // waiting for the gradients of other processes, at the end of `backward`
  exchange,    // any other exchange between processes: gather, reduce, barrier, ...
  clip,        // clipping of gradients
  step,        // of an optimizer
  zero_grad,   //
  schedule,    // a step of a schedule
  save,        // as long as the training waits for it
};
constexpr std::size_t kPhases = 12;

// "data", "transfer", ...
const char* name_of(Phase phase);

struct TimelineOptions {
  // Which process this is. Default: 0, the only one.
  int64_t rank = 0;

  // How the viewer names the process. Default: "rank <rank>".
  std::string process_name = {};

  // The most events of all threads together that are kept; later ones are counted and dropped,
  // though the sums of phases go on. Each takes 40 bytes. 0: only the sums. Default: one million.
  std::size_t max_events = 1'000'000;
};

// Where the time of the busiest thread went, in seconds. A phase inside another counts only for
// itself: the time of `backward` is without that of `reduction`. Exchanges inside of `data` and
// `save` count for those.
struct PhaseTimes {
  std::array<double, kPhases> seconds = {};
  std::array<int64_t, kPhases> counts = {};  // how often each was entered
  double total = 0;                          // from start() to stop(), or to now

  double of(Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  int64_t count(Phase phase) const { return counts[static_cast<std::size_t>(phase)]; }
};

// One line: "time of 1,234 steps: 12 % data, 30 % forward, 45 % backward, 5 % reduction, 8 % step;
// 3.2 ms a step". Steps are those of optimizers. What is in no phase, and phases below 0.5 %, are
// "other".
std::string summary_line(const PhaseTimes& times);

// The name of a span. Those written as literals are kept as they are; texts made at run time are
// copied under a lock when the span begins, if the timeline is on.
class SpanName {
 public:
  template <std::size_t size>
  consteval SpanName(const char (&literal)[size]) : text_(literal, size - 1), is_literal_(true) {}
  SpanName(std::string_view text) : text_(text) {}
  SpanName(const std::string& text) : text_(text) {}

  // For text that lives as long as the program, and ends with a zero.
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

  // Forgets what was recorded and records from now on. `max_events`: another bound from here on.
  void start();
  void start(std::size_t max_events);

  // Keeps what was recorded. Spans that are under way still end in it.
  void stop();
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  // From now until the end of the object's scope, or its end(). Spans of a thread must end in the
  // reverse order of their beginning. One that is under way when start() is called is not recorded.
  [[nodiscard]] Span span(SpanName name, SpanName category = "user");
  [[nodiscard]] Span span(Phase phase);
  [[nodiscard]] Span span(Phase phase, SpanName name);

  // A span of this thread that has ended already, by times of Clock. It must not reach out of the
  // span it is in.
  void add(Phase phase, Clock::time_point from, Clock::time_point to);
  void add(SpanName name, SpanName category, Clock::time_point from, Clock::time_point to);

  // A moment, and a number that changes over time.
  void instant(SpanName name, SpanName category = "user");
  void counter(SpanName name, double value);

  // How the viewer names the calling thread. Default: the name that the system has for it.
  void name_thread(const std::string& name);

  PhaseTimes phase_times() const;

  // How many events are kept, and how many there was no room for.
  int64_t events() const;
  int64_t dropped() const;

  // All that was recorded so far, spans that have not ended left out. A file appears whole or not
  // at all; its folder must be there. Throws Error if it cannot be written.
  void write(const std::string& path) const;
  std::string to_json() const;

 private:
  struct Thread;
  struct State;

  Thread& this_thread() const;

  std::atomic<bool> on_ = false;
  std::shared_ptr<State>
      state_;  // threads that end later than the Timeline look whether it is still there
};

class [[nodiscard]] Timeline::Span {
 public:
  Span() = default;  // records nothing
  ~Span() {
    if (thread_ != nullptr) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // Ends it before its scope does. Further calls do nothing. In the thread that began it.
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
  int64_t in_phases_ = 0;  // time of the phases inside of it
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
