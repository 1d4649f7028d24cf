// Shows how far a long job has come: a bar on a terminal, plain lines in a file or a pipe.
//
//   accelerant::ProgressBar bar(loader, {.description = "epoch 3"});  // one item per batch
//   for (auto&& batch : loader) {
//     ...
//     if (bar.due()) bar.set("loss", loss.item<double>());  // ask the device only to show it
//     bar.advance();
//   }
//
// On a terminal one line is redrawn in place, cut to the terminal's width; so it is for the local
// main process under `accelerant launch`. The cursor is never hidden and no mode is changed, so a
// program that is killed leaves the terminal as it was. The stream is borrowed and must outlive the
// bar. A bar belongs to one thread at a time. Needs no torch. See docs/progress_bar.md.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerant/core/detail/own_process.h"

namespace accelerant {

struct ProgressBarOptions {
  // The number of items, at least 0. Default: 0, unknown; then no percentage, bar or ETA is shown.
  int64_t total = 0;

  // How many of them an earlier run has done, 0 to `total`: the bar begins there. They count
  // neither for the rate nor for the ETA. Default: 0.
  int64_t initial = 0;

  // Text at the beginning of the line. Default: none.
  std::string description = {};

  // What is counted, as in "120 img/s". May be empty: "120/s". Default: "it".
  std::string unit = "it";

  // Where to write. Must not be null. Default: standard error.
  std::FILE* stream = stderr;

  // The least time between two drawings on a terminal, in seconds, at least 0. 0 draws every time.
  // Default: 0.1.
  double refresh_interval = 0.1;

  // The least time between two plain lines, in seconds, at least 0. The last line is always
  // written. Default: 5.
  double plain_interval = 5.0;

  // Whether to draw as on a terminal. `detect`, the default: if the stream is a terminal, or if
  // `accelerant launch` shows it on one, and TERM is not "dumb".
  enum class Terminal { detect, yes, no };
  Terminal terminal = Terminal::detect;

  // Whether to write anything. With several processes only one should:
  // {.enabled = accelerator.is_local_main_process()}. Default: true.
  bool enabled = true;
};

// Everything one line shows.
struct ProgressState {
  std::string description = {};
  std::string unit = "it";
  int64_t done = 0;       // those of earlier runs included
  int64_t total = 0;      // 0: unknown
  double elapsed = 0;     // seconds since the bar was created
  double rate = 0;        // items per second of this run; 0: not known yet
  bool finished = false;  // the elapsed time is shown instead of the ETA

  // Name and text, in the order of display.
  std::vector<std::pair<std::string, std::string>> values = {};
};

// The line for a terminal, at most `width` columns. To save room the bar shrinks and disappears,
// then the values disappear, the last one first, then ETA, rate and count. One code point counts as
// one column.
std::string render_terminal_line(const ProgressState& state, std::size_t width);

// The line for a file or a pipe: no bar, any length, no newline.
std::string render_plain_line(const ProgressState& state);

// Seconds left at the state's rate; negative if unknown.
double estimate_remaining(const ProgressState& state);

// Items per second. Recent work counts more: what is `memory` seconds old has a weight of 1/e.
class RateMeter {
 public:
  explicit RateMeter(double memory = 10.0) : memory_(memory) {}

  // `count` items took `seconds`.
  void add(int64_t count, double seconds);

  // 0 before any time has passed.
  double rate() const;

 private:
  double memory_;
  double items_ = 0;
  double seconds_ = 0;
};

// A loader: it knows how many batches its epoch has, and how many of them its next loop will give.
template <class T>
concept CountsBatches = requires(const T& loader) {
  { loader.length().value_or(0) } -> std::convertible_to<int64_t>;
  { loader.batches_left().value_or(0) } -> std::convertible_to<int64_t>;
};

class ProgressBar {
 public:
  // Throws Error if an option is out of range. The clock starts here.
  explicit ProgressBar(ProgressBarOptions options = {});

  // For the next loop over a loader, to be called before the loop. Counts batches: `total` is the
  // length of the epoch and `initial` the place where the loop begins, which is not 0 after a
  // resume. Both are set here, whatever the options say.
  template <CountsBatches Loader>
  explicit ProgressBar(const Loader& loader, ProgressBarOptions options = {})
      : ProgressBar(over_loop(std::move(options), loader.length().value_or(0),
                              loader.batches_left().value_or(0))) {}

  // Finishes the line if that has not been done.
  ~ProgressBar();

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `count` more items are done. Draws if it is time to.
  void advance(int64_t count = 1);

  // Sets a named value, shown from the next drawing on. Values appear in the order in which they
  // were first set. A number is shown with four digits, a whole number in full.
  void set(std::string_view name, double value);
  void set(std::string_view name, std::string_view text);

  // Whether to set() values now that are costly to get: before the first advance(), when advance()
  // would draw, and before the one that completes `total` (if it advances as far as the one before
  // it), so that the last line never shows old values. If the total is unknown, set the last values
  // before finish().
  bool due() const;

  // Writes a message on a line of its own, above the bar.
  void print(std::string_view message);

  // Draws the last state with the average rate of this run and ends the line. Further calls do
  // nothing.
  void finish();

  const ProgressState& state() const { return state_; }

 private:
  using Clock = std::chrono::steady_clock;

  static ProgressBarOptions over_loop(ProgressBarOptions options, int64_t length, int64_t left);

  bool is_time_to_draw() const;
  void measure(Clock::time_point now);
  void draw();
  void write(const std::string& text);

  ProgressBarOptions options_;
  ProgressState state_;
  RateMeter meter_;
  bool on_terminal_;
  Clock::time_point start_;
  Clock::time_point last_drawing_;
  int64_t done_at_last_drawing_;
  detail::OwnProcess process_;
  int64_t last_count_ = 0;  // of advance()
  bool has_drawn_ = false;
  bool line_open_ = false;  // the cursor is behind a drawn bar
};

}  // namespace accelerant
