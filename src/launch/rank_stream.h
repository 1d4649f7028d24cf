// What one rank writes to one of its streams: by lines on the screen, and in a log file.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "launch/console.h"
#include "launch/line_reader.h"
#include "launch/rank_log.h"

namespace accelerant::launch {

struct RankStreamOptions {
  // Where it is shown; borrowed. Null: nowhere.
  ConsoleStream* console = nullptr;

  int64_t rank = 0;

  // Put before every line. Empty: bytes pass through as they are.
  std::string prefix = {};

  // The rank was told that its output is shown on a terminal, so it draws a progress bar: shown
  // without the prefix, as it has the width of the terminal, and in the log file by lines.
  bool draws_bar = false;
};

class RankStream : private LineReader::Handler {
 public:
  RankStream(RankStreamOptions options, RankLog log);
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  void receive(std::string_view bytes);
  void finish();  // shows what is left of a last line without an end

  // The last lines, whole, without prefix and without libtorch's stack frames.
  std::string last_lines() const;
  bool draws_bar() const { return options_.draws_bar; }
  RankLog& log() { return log_; }
  const RankLog& log() const { return log_; }

 private:
  bool shows_lines() const { return options_.console != nullptr && !options_.prefix.empty(); }

  void take_line(std::string_view text, bool was_bar) override;
  void take_bar(std::string_view text) override;
  void end_bar() override;
  void remove_bar() override;

  void remember(std::string_view line);
  std::string with_prefix(std::string_view text) const;
  std::string with_prefix_of_bar(std::string_view text) const;

  RankStreamOptions options_;
  RankLog log_;
  LineReader reader_;
  std::string bar_;  // its last state; empty: there is none
  std::deque<std::string> tail_;
};

}  // namespace accelerant::launch
