// How the processes of a run watch each other.
//
// With several processes, each has a thread that writes what the process is doing to the store every
// few seconds. From that come three kinds of messages (core/log.h): which process the others wait for,
// processes that wait for each other in exchanges that cannot meet, and processes that are much
// slower than the others. A process costs the others nothing but these few bytes.
#pragma once

#include <chrono>
#include <cstdint>

namespace accelerant::dist {

struct MonitorOptions {
  // Whether there is such a thread. Default: yes.
  bool enabled = true;

  // How often a process writes, at least. Default: 5 s.
  std::chrono::milliseconds interval = std::chrono::seconds(5);

  // A warning names the processes that the others have waited for this long, and again after twice,
  // four times, ... as long. A process that has not written anything is reported only after three
  // intervals. Default: 60 s.
  std::chrono::milliseconds stuck_after = std::chrono::seconds(60);

  // Processes that wait in exchanges which can never meet (one gathers where the other reduces, or
  // has finished) end with an error, after having waited this long. Slow processes never do: it takes
  // exchanges that were really begun in a different order. Default: 2 s.
  std::chrono::milliseconds mismatch_after = std::chrono::seconds(2);

  // A warning names a process whose steps take more than this many times the median of all
  // processes. Default: 1.5. 0: none.
  double straggler_factor = 1.5;

  // Over at least this many of the last 50 steps. Default: 20.
  int64_t straggler_steps = 20;
};

}  // namespace accelerant::dist
