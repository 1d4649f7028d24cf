// What one rank writes to one of its streams: to the screen by lines, to a file as it is.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "core/fd.h"
#include "launch/console.h"

namespace accelerant::launch {

class RankStream {
 public:
  // `console` is borrowed; null: not shown. `prefix` stands before every line; empty: bytes go
  // through as they are. `log_file` need not be open; `log_path` is its name.
  RankStream(ConsoleStream* console, std::string prefix, Fd log_file, std::string log_path);

  void receive(std::string_view bytes);
  void finish();  // shows what is left of a last line without an end

  // The last lines, whole and without prefix.
  std::string last_lines() const;
  bool is_log_complete() const { return log_complete_; }
  // Which file could not be written and why, the first time that happens; else empty.
  std::string take_log_problem() { return std::exchange(log_problem_, {}); }

 private:
  void write_log(std::string_view bytes);
  void split_lines(std::string_view bytes);
  void show_line();
  void remember_line();

  ConsoleStream* console_;
  std::string prefix_;
  Fd log_file_;
  std::string log_path_;
  bool log_complete_ = true;
  std::string log_problem_;
  std::string line_;       // of the screen: since the last line end or carriage return
  std::string tail_line_;  // of last_lines: since the last line end, cut
  std::deque<std::string> tail_;
};

}  // namespace accelerant::launch
