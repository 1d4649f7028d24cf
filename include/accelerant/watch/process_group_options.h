// How the processes of a run are connected, and how they watch each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace accelerant::dist {

// How the processes of a run watch each other. With several processes, each has a thread that
// writes what the process is doing to the store every few seconds. From that come three kinds of
// messages (core/log.h): which process the others wait for, processes that wait for each other in
// exchanges that cannot meet, and processes that are much slower than the others. A process costs
// the others nothing but these few bytes.
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
  // has finished) end with an error, after having waited this long. Slow processes never do: it
  // takes exchanges that were really begun in a different order. Default: 2 s.
  std::chrono::milliseconds mismatch_after = std::chrono::seconds(2);

  // A warning names a process whose steps take more than this many times the median of all
  // processes. Default: 1.5. 0: none.
  double straggler_factor = 1.5;

  // Over at least this many of the last 50 steps. Default: 20.
  int64_t straggler_steps = 20;
};

// What carries tensors between processes. Tensors on the CPU always go through Gloo.
enum class Backend {
  automatic,  // NCCL for CUDA tensors where every process of a machine has its own GPU, else Gloo
  gloo,       // Gloo for CUDA tensors too; several processes may then share a GPU
  nccl,       // NCCL for CUDA tensors
};

struct ProcessGroupOptions {
  Backend backend = Backend::automatic;

  // How long an exchange between processes may take before it fails. A process that has died is
  // noticed at once; only one that hangs, or a network that is cut, takes this long. Default: 10
  // minutes.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  // How long the processes wait for each other at the start. Default: 5 minutes.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);

  // The network interface that Gloo uses, for example "eth0". Default: GLOO_SOCKET_IFNAME, else the
  // one that leads to MASTER_ADDR.
  std::string interface = {};

  // How the processes watch each other.
  MonitorOptions monitor = {};

  // Make groups and a data-parallel model even for a single process. Only useful to try them out.
  bool with_one_process = false;

  // Before every exchange compare what the processes are about to do, so that a process that is
  // somewhere else is an Error on all of them which lists every one, instead of a wait until the
  // timeout. Costs a small message for each exchange. Default: ACCELERATE_DEBUG_MODE, else false.
  std::optional<bool> debug = {};
};

}  // namespace accelerant::dist
