#include "track/trace_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "accelerant/version.h"

namespace accelerant::track {
namespace {

using nlohmann::json;

void append_number(std::string& text, int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text.append(digits, end);
}

// Nanoseconds as microseconds with three decimals, so that no digit is lost.
void append_microseconds(std::string& text, int64_t nanoseconds) {
  if (nanoseconds < 0) text += '-';
  nanoseconds = std::abs(nanoseconds);
  append_number(text, nanoseconds / 1000);
  const auto rest = static_cast<int>(nanoseconds % 1000);
  text += {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
           static_cast<char>('0' + rest % 10)};
}

}  // namespace

std::string json_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

TraceWriter::TraceWriter(TraceHead head, std::function<void(std::string_view)> sink)
    : head_(std::move(head)), sink_(std::move(sink)) {
  text_ =
      "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" + std::to_string(head_.time_of_day);
  json phases = json::object();
  json counts = json::object();
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (head_.times.counts[i] == 0) continue;
    phases[name_of(static_cast<Phase>(i))] = head_.times.seconds[i];
    counts[name_of(static_cast<Phase>(i))] = head_.times.counts[i];
  }
  text_ += ",\n\"accelerant\":" +
           json{{"version", ACCELERANT_VERSION},      {"rank", head_.rank},
                {"dropped_events", head_.dropped},    {"seconds", head_.times.total},
                {"phase_seconds", std::move(phases)}, {"phase_counts", std::move(counts)}}
               .dump();
  text_ += ",\n\"traceEvents\":[";
  const std::string pid = ",\"pid\":" + std::to_string(head_.rank) + ",\"args\":{";
  begin_line();
  text_ += R"({"ph":"M","name":"process_name")" + pid +
           "\"name\":" + json_text(head_.process_name) + "}}";
  begin_line();
  text_ += R"({"ph":"M","name":"process_sort_index")" + pid +
           "\"sort_index\":" + std::to_string(head_.rank) + "}}";
}

void TraceWriter::add_thread(int64_t id, const std::string& name, std::vector<TraceEvent>& events) {
  const std::string place =
      ",\"pid\":" + std::to_string(head_.rank) + ",\"tid\":" + std::to_string(id);
  begin_line();
  text_ +=
      R"({"ph":"M","name":"thread_name")" + place + R"(,"args":{"name":)" + json_text(name) + "}}";
  begin_line();
  text_ += R"({"ph":"M","name":"thread_sort_index")" + place + R"(,"args":{"sort_index":)" +
           std::to_string(threads_++) + "}}";
  // Viewers want spans that begin together in the order of their nesting; they are recorded when
  // they end.
  std::ranges::reverse(events);
  std::ranges::stable_sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    if (a.start != b.start) return a.start < b.start;
    if (a.kind != b.kind) return a.kind < b.kind;
    return a.kind == TraceEvent::Kind::span && a.duration > b.duration;
  });
  for (const TraceEvent& event : events) write_event(event, place);
}

void TraceWriter::write_event(const TraceEvent& event, const std::string& place) {
  const int64_t start = event.start - head_.begin;
  if (start < 0) return;  // from before the recording
  if (event.kind == TraceEvent::Kind::counter && !std::isfinite(event.value))
    return;  // JSON has no such numbers
  begin_line();
  text_ += R"({"ph":")";
  text_ += event.kind == TraceEvent::Kind::span      ? 'X'
           : event.kind == TraceEvent::Kind::instant ? 'i'
                                                     : 'C';
  text_ += "\",\"name\":" + text_of(event.name) + ",\"cat\":" + text_of(event.category);
  text_ += place + ",\"ts\":";
  append_microseconds(text_, start);
  switch (event.kind) {
    case TraceEvent::Kind::span:
      text_ += ",\"dur\":";
      append_microseconds(text_, event.duration);
      break;
    case TraceEvent::Kind::instant:
      text_ += R"(,"s":"t")";
      break;
    case TraceEvent::Kind::counter:
      text_ += R"(,"args":{"value":)" + json(event.value).dump() + "}";
      break;
  }
  text_ += '}';
  flush_if_large();
}

void TraceWriter::begin_line() { text_ += std::exchange(has_events_, true) ? ",\n" : "\n"; }

void TraceWriter::flush_if_large() {
  if (text_.size() < kPiece) return;
  sink_(text_);
  text_.clear();
}

const std::string& TraceWriter::text_of(const char* name) {
  const auto [found, is_new] = texts_.try_emplace(name);
  if (is_new) found->second = json_text(name);
  return found->second;
}

void TraceWriter::finish() {
  text_ += "\n]}\n";
  sink_(text_);
  text_.clear();
}

}  // namespace accelerant::track
