// The signals that a launcher receives, as a descriptor to poll.
#pragma once

#include <signal.h>

#include <optional>

#include "core/fd.h"

namespace accelerant::launch {

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 do not end the process but are read
// here, and a closed pipe or a file that must not grow (ulimit -f) is an error of write() instead of
// a signal. Signals that the process ignores already (nohup) stay ignored. For processes with a
// single thread.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }  // readable when a signal has arrived
  std::optional<int> next();            // the next one, without waiting

 private:
  sigset_t watched_;
  sigset_t before_;
  Fd fd_;
};

}  // namespace accelerant::launch
