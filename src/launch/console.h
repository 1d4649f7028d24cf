// This process's standard output and standard error, written without ever waiting for them.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/debug_launcher.h"
#include "launch/signal_watch.h"

namespace accelerant::launch {

// One of the two. Text waits here until the terminal, pipe or file takes it. If nobody reads it any
// more, it is dropped and the ranks continue.
//
// On a terminal the last line may be a progress bar: lines appear above it. If several ranks draw
// one, that of the lowest rank is shown.
class ConsoleStream {
 public:
  explicit ConsoleStream(int fd);

  void add(std::string_view bytes);
  // Whole lines, above the bar.
  void add_lines(std::string_view lines);

  // Only on a terminal. Cut to its width.
  void set_bar(int64_t rank, std::string text);
  // The bar stays where it is, and what follows begins below it. False: this rank's is not shown.
  bool end_bar(int64_t rank);
  void remove_bar(int64_t rank);

  int fd() const { return fd_; }
  bool has_pending() const { return !pending_.empty(); }
  bool is_congested() const;
  bool is_inside_line() const { return last_ != '\n' && !bar_is_visible_; }
  bool is_terminal() const { return is_terminal_; }
  void write_pending();
  void drop_pending() { pending_.clear(); }

 private:
  struct Bar {
    int64_t rank = 0;
    std::string text = {};
  };
  void hide_bar();
  void draw_bar();
  bool has_bar_of(int64_t rank) const { return bar_ && bar_->rank == rank; }

  int fd_;
  bool is_terminal_;  // one that knows escape sequences
  bool takes_all_;    // a file: never makes us wait
  bool is_closed_ = false;
  char last_ = '\n';
  std::string pending_;
  std::optional<Bar> bar_;
  bool bar_is_visible_ = false;
  bool bar_has_changed_ = false;  // since it was drawn
};

struct Console {
  ConsoleStream out = ConsoleStream(1);
  ConsoleStream err = ConsoleStream(2);
  // Then all goes through `err`, so that it appears in the order in which it came.
  bool is_one_terminal = is_same_terminal(1, 2);

  ConsoleStream& of(Stream stream) { return stream == Stream::out && !is_one_terminal ? out : err; }
  const ConsoleStream& of(Stream stream) const {
    return stream == Stream::out && !is_one_terminal ? out : err;
  }

  void add_poll_entries(std::vector<pollfd>& entries) const;
  void write_pending();

  // Waits until all is written, or until Ctrl-C.
  void flush(SignalWatch& signals);

 private:
  static bool is_same_terminal(int one, int other);
};

}  // namespace accelerant::launch
