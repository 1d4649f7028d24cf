// Writes Chrome's trace format: JSON with one event on each line.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
//
// Times in a file are microseconds since `baseTimeNanoseconds`, a time of day, as in the files of
// torch's own profiler, so that traces of several processes can be merged. Our own additions are
// under "accelerant".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "accelerant/track/timeline.h"

namespace accelerant::track {

// Traces are written in pieces of about this size, in bytes.
inline constexpr std::size_t kPiece = 1 << 20;

struct TraceEvent {
  enum class Kind : uint8_t { span, instant, counter };
  Kind kind = Kind::span;
  const char* name = nullptr;
  const char* category = nullptr;
  int64_t start = 0;  // nanoseconds
  union {
    int64_t duration = 0;  // of a span
    double value;          // of a counter
  };
};

// Facts about the file as a whole.
struct TraceHead {
  int64_t rank = 0;
  std::string process_name = {};
  int64_t begin = 0;        // that of the recording, in the time of events
  int64_t time_of_day = 0;  // the same moment since 1970, in nanoseconds
  int64_t dropped = 0;
  PhaseTimes times = {};
};

// A JSON string with its quotes. Invalid UTF-8 is replaced.
std::string json_text(std::string_view text);

class TraceWriter {
 public:
  // The text goes to the sink piece by piece.
  TraceWriter(TraceHead head, std::function<void(std::string_view)> sink);

  // Each thread once. Changes the order of the events.
  void add_thread(int64_t id, const std::string& name, std::vector<TraceEvent>& events);

  void finish();

 private:
  void write_event(const TraceEvent& event, const std::string& place);
  void begin_line();
  void flush_if_large();
  const std::string& text_of(const char* name);

  TraceHead head_;
  std::function<void(std::string_view)> sink_;
  std::string text_;  // not yet in the sink
  bool has_events_ = false;
  int64_t threads_ = 0;
  std::unordered_map<const char*, std::string> texts_;  // names as JSON
};

}  // namespace accelerant::track
