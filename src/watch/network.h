// What the processes' traffic needs to know of this machine: an address that the others reach, and
// how many threads each process should use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/watch/environment.h"

namespace accelerant::dist {

// What Gloo should listen on: a network interface, or an address of this machine.
struct GlooEndpoint {
  bool is_interface = false;
  std::string name = {};  // of the interface, or the address
};

// The interface, where one is named: by `interface`, or by GLOO_SOCKET_IFNAME (of several,
// separated by commas, the first). 127.0.0.1 where all processes run on this machine. Otherwise the
// address from which MASTER_ADDR is reached, or the first of an interface that leads out of this
// machine. Gloo itself would take what the host name resolves to, which on Debian is 127.0.1.1: no
// other machine reaches that. An Error names GLOO_SOCKET_IFNAME.
GlooEndpoint gloo_endpoint(const Environment& environment, const std::string& interface = "");

// The cores this process may use, by its affinity and its control group, shared between the
// processes of this machine; at least 1.
int threads_per_process(const Environment& environment);

// --- Parts of the above ---------------------------------------------------------------------------

struct InterfaceAddress {
  std::string interface = {};
  std::string address = {};
  bool loopback = false;
};

// Of interfaces that are up, in their order: IPv4 before IPv6, and those of bridges to containers
// and virtual machines last. Nothing if only loopback is left.
std::optional<std::string> address_to_others(const std::vector<InterfaceAddress>& addresses);

// The cores that "150000 100000", the content of cpu.max, stands for; nothing for "max 100000".
std::optional<double> cores_of_quota(std::string_view cpu_max);

}  // namespace accelerant::dist
