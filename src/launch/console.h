// This process's standard output and standard error, written without ever waiting for them.
#pragma once

#include <poll.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/debug_launcher.h"
#include "launch/signal_watch.h"

namespace accelerant::launch {

// One of the two. Text waits here until the terminal, pipe or file takes it. If nobody reads it any
// more, it is dropped: the ranks go on.
class ConsoleStream {
 public:
  explicit ConsoleStream(int fd);

  void add(std::string_view bytes);
  void begin_line();  // before a line of another writer than the last

  int fd() const { return fd_; }
  bool has_pending() const { return !pending_.empty(); }
  bool is_congested() const;
  bool is_inside_line() const { return last_ != '\n'; }
  bool is_terminal() const { return is_terminal_; }
  void write_pending();
  void drop_pending() { pending_.clear(); }

 private:
  int fd_;
  bool is_terminal_;
  bool takes_all_;  // a file: never makes us wait
  bool is_closed_ = false;
  char last_ = '\n';
  std::string pending_;
};

struct Console {
  ConsoleStream out = ConsoleStream(1);
  ConsoleStream err = ConsoleStream(2);

  ConsoleStream& of(Stream stream) { return stream == Stream::out ? out : err; }
  const ConsoleStream& of(Stream stream) const { return stream == Stream::out ? out : err; }

  void add_poll_entries(std::vector<pollfd>& entries) const;
  void write_pending();

  // Waits until all is written, or until Ctrl-C.
  void flush(SignalWatch& signals);
};

}  // namespace accelerant::launch
