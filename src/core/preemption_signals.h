// Signals by which a process is asked to save its state and stop.
//
//   const PreemptionSignals signals({SIGTERM, SIGUSR1});
//   while (PreemptionSignals::received() == 0) step();
//
// While one of these objects lives, its signals do not end the process: the first is remembered. So
// that nobody is locked in, the same signal once more acts as by default, which ends the process at
// once, with two exceptions. One that follows within two seconds is taken for the same request:
// clusters often signal a launcher and its ranks, and the launcher passes its own on. And SIGUSR1
// and SIGUSR2 may come any number of times. In a child of this process (fork) all of them act as by
// default.
//
// A handler that the program has installed before does not run meanwhile, which is logged as a
// warning. With the last object that watches a signal the handler before comes back, unless the
// program has installed another one since. Signals that were ignored are watched too.
#pragma once

#include <signal.h>

#include <chrono>
#include <vector>

namespace accelerant {

// Thread-safe.
class PreemptionSignals {
 public:
  // `repeat_after`: from when on the same signal again is a second request; of several objects the
  // last one's counts. An Error if a signal does not exist, cannot be handled or tells of a crash.
  explicit PreemptionSignals(
      std::vector<int> signals = {SIGTERM, SIGUSR1},
      std::chrono::milliseconds repeat_after = std::chrono::milliseconds(2000));
  ~PreemptionSignals();
  PreemptionSignals(const PreemptionSignals&) = delete;
  PreemptionSignals& operator=(const PreemptionSignals&) = delete;

  // The signal that came first; 0: none since the first of the objects that live.
  static int received();

 private:
  std::vector<int> signals_;
};

}  // namespace accelerant
