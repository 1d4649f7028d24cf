// How far a long job has come: a bar on a terminal, plain lines in a file or a pipe.
//
//   accelerant::ProgressBar bar({.total = 60'000, .description = "train", .unit = "img"});
//   for (...) {
//     ...
//     if (bar.due()) bar.set("loss", loss.item<double>());  // ask the device only to show it
//     bar.advance(batch_size);
//   }
//
// On a terminal one line is redrawn in place, cut to the terminal's width. The cursor is never
// hidden and no mode is changed, so a program that is killed leaves the terminal as it was. The
// stream is borrowed and must outlive the bar. A bar belongs to one thread at a time. Knows nothing
// of torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerant {

struct ProgressBarOptions {
  // How many items there are; 0: not known, then neither percentage, bar nor ETA is shown.
  // At least 0.
  int64_t total = 0;

  // Stands in front of the line. Default: nothing.
  std::string description = {};

  // What is counted, as in "120 img/s". May be empty: "120/s".
  std::string unit = "it";

  // Where to write. Must not be null.
  std::FILE* stream = stderr;

  // The least time between two drawings on a terminal, in seconds. At least 0; 0 draws each time.
  double refresh_interval = 0.1;

  // The least time between two plain lines, in seconds. At least 0. The last line always comes.
  double plain_interval = 5.0;

  // Whether the stream is a terminal. `detect` asks the system; TERM=dumb counts as none.
  enum class Terminal { detect, yes, no };
  Terminal terminal = Terminal::detect;

  // Whether anything is written. With several processes, one should:
  // {.enabled = accelerator.is_local_main_process()}.
  bool enabled = true;
};

// Everything one line shows.
struct ProgressState {
  std::string description = {};
  std::string unit = "it";
  int64_t done = 0;
  int64_t total = 0;      // 0: not known
  double elapsed = 0;     // seconds since the start
  double rate = 0;        // items per second; 0: not known yet
  bool finished = false;  // the elapsed time is shown in place of the ETA

  // Name and text, in the order of display.
  std::vector<std::pair<std::string, std::string>> values = {};
};

// The line for a terminal, at most `width` columns: the bar shrinks first, then goes, then the
// values from the last, then rate, ETA and count. One code point counts as one column.
std::string render_terminal_line(const ProgressState& state, std::size_t width);

// The line for a file or a pipe: no bar, any length, no newline.
std::string render_plain_line(const ProgressState& state);

// Seconds left at the state's rate; negative when that cannot be said.
double estimate_remaining(const ProgressState& state);

// Items per second, with recent time weighing more: what lies `memory` seconds back counts 1/e.
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

class ProgressBar {
 public:
  // Throws Error if an option is out of range. The clock starts here.
  explicit ProgressBar(ProgressBarOptions options = {});

  // Finishes the line if that has not been done.
  ~ProgressBar();

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `count` more items are done. Draws if it is time to.
  void advance(int64_t count = 1);

  // Sets a named value, shown from the next drawing on in the order of first setting. A number is
  // shown with four digits, whole numbers in full.
  void set(std::string_view name, double value);
  void set(std::string_view name, std::string_view text);

  // Whether advance() would draw now: the moment to set() values that are costly to get.
  bool due() const;

  // Writes a message on a line of its own and continues below it.
  void print(std::string_view message);

  // Draws the last state with the average rate and ends the line. Further calls do nothing.
  void finish();

  const ProgressState& state() const { return state_; }

 private:
  using Clock = std::chrono::steady_clock;

  void measure(Clock::time_point now);
  void draw();
  void write(const std::string& text);

  ProgressBarOptions options_;
  ProgressState state_;
  RateMeter meter_;
  bool on_terminal_;
  Clock::time_point start_;
  Clock::time_point last_drawing_;
  int64_t done_at_last_drawing_ = 0;
  bool line_open_ = false;  // the cursor stands behind a drawn bar
};

}  // namespace accelerant
