// The log file of one stream of a rank.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "core/fd.h"

namespace accelerant::launch {

// Takes either the bytes as they are, or lines and states of a bar. Of a bar it keeps a state every
// few seconds and the last one, each on a line of its own.
class RankLog {
 public:
  // `file` need not be open: then nothing is written. `path` is its name.
  RankLog(Fd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  void write(std::string_view bytes);
  void write_line(std::string_view text);
  void write_bar(std::string_view state);
  void end_bar();
  void remove_bar() { bar_.clear(); }

  bool is_complete() const { return is_complete_; }
  // Which file could not be written and why, the first time that happens; else empty.
  std::string take_problem() { return std::exchange(problem_, {}); }

 private:
  using Clock = std::chrono::steady_clock;

  Fd file_;
  std::string path_;
  bool is_complete_ = true;
  std::string problem_;
  std::string bar_;                        // its last state, not written yet; empty: there is none
  Clock::time_point bar_written_at_ = {};  // or when the bar began
  bool bar_has_begun_ = false;
};

}  // namespace accelerant::launch
