// Signals that ask a process to save its state and stop.
//
//   const PreemptionSignals signals({SIGTERM, SIGUSR1});
//   while (PreemptionSignals::received() == 0) step();
//
// While one of these objects lives, its signals do not end the process: the first one is
// remembered. To leave a way out, a repeated signal takes its default action, which ends the
// process at once, with two exceptions. A repetition within two seconds counts as the same request,
// because clusters often signal a launcher and its ranks, and the launcher forwards its own signal.
// SIGUSR1 and SIGUSR2 may arrive any number of times. In a forked child, all of these signals take
// their default action.
//
// The program's earlier handlers do not run meanwhile; a warning is logged. When the last object
// that watches a signal is destroyed, the earlier handler is restored, unless the program has
// installed another one since. Ignored signals are watched too.
#pragma once

#include <signal.h>

#include <chrono>
#include <vector>

#include "accelerant/core/detail/own_process.h"

namespace accelerant {

// Thread-safe.
class PreemptionSignals {
 public:
  // `repeat_after`: how long after the first signal the same signal counts as a second request; the
  // newest object's value applies. Throws Error for a signal that does not exist, cannot be handled
  // or indicates a crash.
  explicit PreemptionSignals(
      std::vector<int> signals = {SIGTERM, SIGUSR1},
      std::chrono::milliseconds repeat_after = std::chrono::milliseconds(2000));
  ~PreemptionSignals();
  PreemptionSignals(const PreemptionSignals&) = delete;
  PreemptionSignals& operator=(const PreemptionSignals&) = delete;

  // The first signal received; 0 if there was none while objects of this type lived.
  static int received();

 private:
  std::vector<int> signals_;
  detail::OwnProcess process_;
};

}  // namespace accelerant
