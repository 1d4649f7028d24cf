// The signals to a launcher, as something to poll.
#pragma once

#include <signal.h>

#include <optional>

#include "core/fd.h"

namespace accelerant::launch {

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 do not end this thread's process but
// are read here, and a closed pipe or a file that must not grow (ulimit -f) is an error of write()
// instead of a signal. Signals that the process was told to ignore (nohup) stay ignored. For the
// only thread of a process.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }  // readable when a signal has arrived
  std::optional<int> next();            // the next of them, without waiting

 private:
  sigset_t watched_;
  sigset_t before_;
  Fd fd_;
};

}  // namespace accelerant::launch
