#include "accelerant/track/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "accelerant/core/error.h"
#include "core/launch_contract.h"

namespace accelerant {
namespace {

constexpr std::size_t min_bar_cells = 6;
constexpr std::size_t max_bar_cells = 40;
constexpr std::size_t default_columns = 80;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  const int length = std::snprintf(nullptr, 0, pattern, args...);
  std::string text(static_cast<std::size_t>(length), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, args...);
  return text;
}

bool starts_code_point(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_code_point));
}

std::string cut_to(const std::string& text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (starts_code_point(text[i]) && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

// A newline or an escape sequence in a name would break the single line.
std::string without_control_characters(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return result;
}

std::string time_text(double seconds) {
  // A very slow job may have an ETA beyond what an integer holds.
  const auto total = static_cast<long long>(std::min(seconds, 1e9) + 0.5);
  if (total >= 3600) return format("%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  return format("%02lld:%02lld", total / 60, total % 60);
}

std::string rate_text(const ProgressState& state) {
  const std::string per_second = state.unit.empty() ? "/s" : " " + state.unit + "/s";
  if (!(state.rate > 0)) return "?" + per_second;
  if (state.rate < 1) {
    return format("%.2f s/%s", 1 / state.rate, state.unit.empty() ? "item" : state.unit.c_str());
  }
  return format(state.rate < 100 ? "%.1f" : "%.0f", state.rate) + per_second;
}

std::string percent_text(const ProgressState& state) {
  // Rounded down, so that 100 % is shown only when all is done.
  const double share = static_cast<double>(state.done) / static_cast<double>(state.total);
  return format("%d%%", static_cast<int>(std::clamp(share, 0.0, 1.0) * 100));
}

std::string count_text(const ProgressState& state) {
  const auto done = static_cast<long long>(state.done);
  if (state.total > 0) return format("%lld/%lld", done, static_cast<long long>(state.total));
  return format("%lld", done) + (state.unit.empty() ? "" : " " + state.unit);
}

std::string remaining_text(const ProgressState& state) {
  const double remaining = estimate_remaining(state);
  return "ETA " + (remaining < 0 ? std::string("?") : time_text(remaining));
}

std::string bar_text(const ProgressState& state, std::size_t cells) {
  const double share = static_cast<double>(state.done) / static_cast<double>(state.total);
  const auto full =
      static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells));
  std::string bar(cells, ' ');
  std::fill_n(bar.begin(), full, '=');
  if (full < cells) bar[full] = '>';
  return "[" + bar + "]";
}

void append(std::string& line, const std::string& part) {
  if (!line.empty() && !part.empty()) line += ' ';
  line += part;
}

std::string join(const std::vector<std::string>& parts, std::size_t count) {
  std::string line;
  for (std::size_t i = 0; i < count; ++i) append(line, parts[i]);
  return line;
}

bool is_terminal(const ProgressBarOptions& options) {
  if (options.terminal != ProgressBarOptions::Terminal::detect) {
    return options.terminal == ProgressBarOptions::Terminal::yes;
  }
  const char* kind = std::getenv("TERM");
  if (std::string_view(kind ? kind : "") == "dumb") return false;
  const int fd = fileno(options.stream);
  return isatty(fd) == 1 || columns_behind_launcher(fd).has_value();
}

// Asked at every drawing, because the window may have been resized.
std::size_t columns_for(std::FILE* stream) {
  const int fd = fileno(stream);
  if (const auto columns = terminal_columns(fd)) return *columns;
  return columns_behind_launcher(fd).value_or(default_columns);
}

ProgressBarOptions checked(ProgressBarOptions options) {
  if (options.stream == nullptr) throw Error("ProgressBar: the stream must not be null");
  if (options.total < 0) {
    throw Error({.problem = "ProgressBar: bad total",
                 .expected = "at least 0",
                 .got = std::to_string(options.total),
                 .hint = "use 0 if the number is unknown"});
  }
  if (options.initial < 0 || (options.total > 0 && options.initial > options.total)) {
    throw Error({.problem = "ProgressBar: bad initial",
                 .expected = options.total > 0 ? "0 to total = " + std::to_string(options.total)
                                               : std::string("at least 0"),
                 .got = std::to_string(options.initial),
                 .hint = "count it in the same unit as total"});
  }
  for (const double interval : {options.refresh_interval, options.plain_interval}) {
    if (!(interval >= 0)) {
      throw Error({.problem = "ProgressBar: bad interval",
                   .expected = "at least 0 seconds",
                   .got = std::to_string(interval),
                   .hint = {}});
    }
  }
  return options;
}

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string value_text(double value) {
  const double size = std::abs(value);
  const bool is_whole = std::isfinite(value) && value == std::floor(value);
  if (size < 1e9 && (is_whole || size >= 1e4)) return format("%.0f", value);
  return format("%.4g", value);
}

}  // namespace

double estimate_remaining(const ProgressState& state) {
  if (state.total <= 0 || !(state.rate > 0)) return -1;
  return static_cast<double>(std::max<int64_t>(state.total - state.done, 0)) / state.rate;
}

std::string render_terminal_line(const ProgressState& state, std::size_t width) {
  std::string head = without_control_characters(state.description);
  // Padded, so that the rest of the line stays in its place.
  if (state.total > 0) append(head, format("%4s", percent_text(state).c_str()));

  const bool show_remaining = state.total > 0 && !state.finished;
  std::vector<std::string> tail = {
      count_text(state), rate_text(state),
      show_remaining ? remaining_text(state) : "in " + time_text(state.elapsed)};
  for (const auto& [name, text] : state.values) {
    tail.push_back(without_control_characters(name + " " + text));
  }

  std::string all = head;
  append(all, join(tail, tail.size()));
  const std::size_t brackets_and_space = 3;
  const std::size_t used = columns_of(all) + brackets_and_space;
  if (state.total > 0 && used + min_bar_cells <= width) {
    std::string line = head + " " + bar_text(state, std::min(width - used, max_bar_cells));
    append(line, join(tail, tail.size()));
    return line;
  }
  for (std::size_t kept = tail.size(); kept > 0; --kept) {
    std::string line = head;
    append(line, join(tail, kept));
    if (columns_of(line) <= width) return line;
  }
  return cut_to(head, width);
}

std::string render_plain_line(const ProgressState& state) {
  std::string line = without_control_characters(state.description);
  if (!line.empty()) line += ':';
  if (state.total > 0) append(line, percent_text(state));
  append(line, count_text(state));
  // Behind a count of unknown total the unit is there already.
  if (state.total > 0 && !state.unit.empty()) line += " " + state.unit;
  line += ", " + rate_text(state) + ", elapsed " + time_text(state.elapsed);
  if (state.total > 0 && !state.finished) line += ", " + remaining_text(state);
  for (const auto& [name, text] : state.values) {
    line += ", " + without_control_characters(name + " " + text);
  }
  return line;
}

void RateMeter::add(int64_t count, double seconds) {
  if (!(seconds >= 0)) return;
  // Items and seconds fade alike, so their ratio is the plain average at first.
  const double kept = std::exp(-seconds / memory_);
  items_ = items_ * kept + static_cast<double>(count);
  seconds_ = seconds_ * kept + seconds;
}

double RateMeter::rate() const { return seconds_ > 0 ? items_ / seconds_ : 0; }

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(checked(std::move(options))),
      on_terminal_(is_terminal(options_)),
      start_(Clock::now()),
      last_drawing_(start_),
      done_at_last_drawing_(options_.initial) {
  state_.description = options_.description;
  state_.unit = without_control_characters(options_.unit);
  state_.done = options_.initial;
  state_.total = options_.total;
}

ProgressBarOptions ProgressBar::over_loop(ProgressBarOptions options, int64_t length,
                                          int64_t left) {
  options.total = length;
  options.initial = std::max<int64_t>(length - left, 0);
  return options;
}

ProgressBar::~ProgressBar() {
  if (!process_.is_this_one()) return;
  try {
    finish();
  } catch (...) {  // out of memory: a lost line is no reason to end the program
  }
}

void ProgressBar::advance(int64_t count) {
  if (state_.finished) return;
  state_.done += count;
  last_count_ = count;
  if (is_time_to_draw()) draw();
}

void ProgressBar::set(std::string_view name, double value) { set(name, value_text(value)); }

void ProgressBar::set(std::string_view name, std::string_view text) {
  for (auto& [known, known_text] : state_.values) {
    if (known == name) {
      known_text = text;
      return;
    }
  }
  state_.values.emplace_back(name, text);
}

bool ProgressBar::due() const {
  if (state_.finished || !options_.enabled) return false;
  // An epoch may be shorter than an interval, and its last line must not show old values.
  const bool is_first = last_count_ == 0;
  const bool completes = state_.total > 0 && state_.done + last_count_ >= state_.total;
  return is_first || completes || is_time_to_draw();
}

bool ProgressBar::is_time_to_draw() const {
  if (state_.finished || !options_.enabled) return false;
  if (on_terminal_ && !has_drawn_) return true;
  const double interval = on_terminal_ ? options_.refresh_interval : options_.plain_interval;
  return seconds_between(last_drawing_, Clock::now()) >= interval;
}

void ProgressBar::print(std::string_view message) {
  const bool redraw = line_open_;
  write((line_open_ ? "\r\x1b[K" : "") + std::string(message) + "\n");
  line_open_ = false;
  if (redraw) draw();
}

void ProgressBar::finish() {
  if (state_.finished) return;
  state_.finished = true;
  draw();
  if (line_open_) write("\n");
  line_open_ = false;
}

void ProgressBar::measure(Clock::time_point now) {
  state_.elapsed = seconds_between(start_, now);
  meter_.add(state_.done - done_at_last_drawing_, seconds_between(last_drawing_, now));
  const auto done = static_cast<double>(state_.done - options_.initial);
  state_.rate = !state_.finished ? meter_.rate() : state_.elapsed > 0 ? done / state_.elapsed : 0;
  last_drawing_ = now;
  done_at_last_drawing_ = state_.done;
}

void ProgressBar::draw() {
  measure(Clock::now());
  has_drawn_ = true;
  if (!on_terminal_) {
    write(render_plain_line(state_) + "\n");
    return;
  }
  // The last column stays free: some terminals wrap as soon as it is written.
  const std::size_t columns = columns_for(options_.stream);
  const std::string line = render_terminal_line(state_, columns - 1);
  write("\r" + line + "\x1b[K");
  line_open_ = true;
}

void ProgressBar::write(const std::string& text) {
  if (!options_.enabled) return;
  // A display that cannot be written must not stop the work, so errors are ignored.
  std::fwrite(text.data(), 1, text.size(), options_.stream);
  std::fflush(options_.stream);
}

}  // namespace accelerant
