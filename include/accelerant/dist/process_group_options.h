// How the processes of a run are connected.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "accelerant/dist/monitor_options.h"

namespace accelerant::dist {

// What carries tensors between processes. Tensors on the CPU always go through Gloo.
enum class Backend {
  automatic,  // NCCL for CUDA tensors where every process of the machine has a GPU of its own, else Gloo
  gloo,       // Gloo for CUDA tensors too; several processes may then share a GPU
  nccl,       // NCCL for CUDA tensors
};

struct ProcessGroupOptions {
  Backend backend = Backend::automatic;

  // How long an exchange between processes may take before it fails. A process that has died is
  // noticed at once; only one that hangs, or a network that is cut, takes this long. Default: 10 minutes.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  // How long the processes wait for each other at the start. Default: 5 minutes.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);

  // The network interface that Gloo uses, for example "eth0". Default: GLOO_SOCKET_IFNAME, else the one
  // that leads to MASTER_ADDR.
  std::string interface = {};

  // How the processes watch each other.
  MonitorOptions monitor = {};

  // Make groups and a data-parallel model even for a single process. Only useful to try them out.
  bool with_one_process = false;

  // Before every exchange compare what the processes are about to do, so that a process that is somewhere else is
  // an Error on all of them which lists every one, instead of a wait until the timeout. Costs a small
  // message for each exchange. Default: ACCELERATE_DEBUG_MODE, else false.
  std::optional<bool> debug = {};
};

}  // namespace accelerant::dist
