// What the exchanges need to know about this machine: an address that the others can reach, and how
// many threads each process should use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "accelerant/watch/environment.h"

namespace accelerant::dist {

// What Gloo should listen on: a network interface, or an address of this machine.
struct GlooEndpoint {
  bool is_interface = false;
  std::string name = {};  // of the interface, or the address
};

// If `interface` or GLOO_SOCKET_IFNAME names an interface (of several, separated by commas, the
// first counts): that one. If all processes run on this machine: 127.0.0.1. Otherwise the address
// from which MASTER_ADDR is reached, or the first one of an interface that leads out of this
// machine. Gloo itself would take what the host name resolves to, which on Debian is 127.0.1.1: no
// other machine can reach that. Throws an Error that names GLOO_SOCKET_IFNAME if there is none.
GlooEndpoint gloo_endpoint(const Environment& environment, const std::string& interface = "");

// The cores that this process may use, by its affinity and its control group, divided among the
// processes of this machine; at least 1.
int threads_per_process(const Environment& environment);

// --- Parts of the above ---------------------------------------------------------------------------

// The cores that "150000 100000", the content of cpu.max, stands for; nothing for "max 100000".
std::optional<double> cores_of_quota(std::string_view cpu_max);

}  // namespace accelerant::dist
