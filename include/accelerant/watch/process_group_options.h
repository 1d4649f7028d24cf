// How the processes of a run are connected, and how they watch each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace accelerant::dist {

// How the processes of a run watch each other. With several processes, each has a thread that
// writes what the process is doing to the store every few seconds. Three kinds of messages
// (core/log.h) come from that: which process the others wait for, processes that wait for each other
// in exchanges that can never meet, and processes that are much slower than the others. It costs
// only these few bytes. Waits for processes that have fallen silent end with an error.
struct MonitorOptions {
  // Whether to run this thread. Default: true.
  bool enabled = true;

  // How often a process writes at least. Default: 5 s.
  std::chrono::milliseconds interval = std::chrono::seconds(5);

  // Warn if the others have waited for a process this long, and again after twice, four times, ...
  // this time. A process that has not written anything is reported only after three intervals.
  // Default: 60 s.
  std::chrono::milliseconds stuck_after = std::chrono::seconds(60);

  // After this long, end a process with an error if it waits in an exchange that can never complete:
  // it gathers while another one reduces, or has left the run. A slow process never causes this,
  // only exchanges that were really begun in a different order. Default: 2 s.
  std::chrono::milliseconds mismatch_after = std::chrono::seconds(2);

  // Warn if the steps of a process take more than this many times the median of all processes.
  // 0: never. Default: 1.5.
  double straggler_factor = 1.5;

  // How many steps, of the last 50, that takes at least. Default: 20.
  int64_t straggler_steps = 20;

  // After this long, end a process with an error if it waits for others, and one of them has written
  // nothing all this time (its process is stopped, its machine is gone), or the store has not
  // answered. A process that is only slow keeps writing; for that there is
  // ProcessGroupOptions::timeout. Time in which this process was stopped itself does not count, nor
  // do processes in a debugger. At least three intervals. Default: 60 s. 0: never.
  std::chrono::milliseconds lost_after = std::chrono::seconds(60);
};

// What carries tensors between processes. Tensors on the CPU always go through Gloo.
enum class Backend {
  automatic,  // NCCL for CUDA tensors if every process of a machine has its own GPU, else Gloo
  gloo,       // Gloo for CUDA tensors too; several processes may then share a GPU
  nccl,       // NCCL for CUDA tensors
};

struct ProcessGroupOptions {
  // What carries tensors between processes. Default: automatic.
  Backend backend = Backend::automatic;

  // How long an exchange between processes may take before it fails. A process that dies is noticed
  // at once, and one that is stopped or cut off after MonitorOptions::lost_after; only one that runs
  // but does not come to the exchange takes this long. Default: 10 minutes.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  // How long the processes wait for each other at the start. Default: 5 minutes.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);

  // The network interface that Gloo uses, for example "eth0". Default: GLOO_SOCKET_IFNAME, else the
  // one that leads to MASTER_ADDR.
  std::string interface = {};

  // How the processes watch each other.
  MonitorOptions monitor = {};

  // Create groups and a data-parallel model even for a single process. Only useful to try them out.
  // Default: false.
  bool with_one_process = false;

  // Before every exchange, compare what the processes are about to do. If one of them is somewhere
  // else, all of them throw an Error that lists every process, instead of waiting until the timeout.
  // Costs a small message for each exchange. Default: ACCELERATE_DEBUG_MODE, else false.
  std::optional<bool> debug = {};
};

}  // namespace accelerant::dist
