// Runs the processes of one attempt from their start until the last of them is gone.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/debug_launcher.h"
#include "core/fd.h"
#include "launch/child_process.h"
#include "launch/guardian.h"
#include "launch/signal_watch.h"

namespace accelerant::launch {

// Receives what the ranks write. `index` counts the ranks of this machine from 0.
class OutputReceiver {
 public:
  virtual ~OutputReceiver() = default;

  virtual void receive(size_t index, Stream stream, std::string_view bytes) = 0;

  // While true, nothing more is read from this stream, so the ranks wait as for a slow terminal.
  virtual bool is_congested(Stream) const { return false; }

  // A receiver that writes to something slow adds it here, and is asked to write after each wait.
  virtual void add_poll_entries(std::vector<pollfd>&) const {}
  virtual void write_pending() {}
};

struct RankStart {
  int64_t rank = 0;
  ChildCommand command = {};
  std::string error_file = {};
  Fd inherited = {};  // the rank inherits it; closed here once the rank runs
};

// Ranks, each list in the order of the starts.
using OnStillRunning =
    std::function<void(const std::vector<int64_t>& ended, const std::vector<int64_t>& running)>;

struct RankGroupOptions {
  // Between the polite signal and SIGKILL; between the end of a rank by request and the polite
  // signal to others.
  std::chrono::milliseconds grace = std::chrono::seconds(30);

  // The same for a rank that says that it is saving its state. Not less than grace.
  std::chrono::milliseconds saving_grace = std::chrono::minutes(10);

  // How often to look for ended ranks, in addition to the kernel's notification.
  std::chrono::milliseconds monitor_interval = std::chrono::milliseconds(100);

  // After this time all ranks are killed. None: no limit.
  std::optional<std::chrono::milliseconds> timeout = {};

  // Called once if ranks are still running this long after the first one has ended with exit code
  // 0. None: never.
  std::optional<std::chrono::milliseconds> notice_after = {};
  OnStillRunning on_still_running = {};  // required with notice_after

  // For a process that does nothing but launch. Its signals are passed on to the ranks, and stop the
  // group, except for SIGUSR1: a rank that stops because of it says so by its exit code. What ranks
  // leave behind in their process groups gets the grace too. Borrowed; may be null.
  SignalWatch* signals = nullptr;
  Guardian* guardian = nullptr;
};

struct RankGroupResult {
  std::vector<RankResult> ranks = {};  // in the order of the starts
  int signal = 0;                      // that stopped the group, sent to this process; 0: none
  bool timed_out = false;
};

// One thread, one event loop. As soon as one rank fails the others are stopped. If a rank ends
// because it was asked to (RankResult::preempted), the others get the time to do the same.
RankGroupResult run_rank_group(std::vector<RankStart> starts, OutputReceiver& receiver,
                               const RankGroupOptions& options);

}  // namespace accelerant::launch
