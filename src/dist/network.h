// What the processes' traffic needs to know of this machine: an address that the others reach, and
// how many threads each process should use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/dist/environment.h"

namespace accelerant::dist {

// The address of this machine that Gloo should listen on. Gloo itself takes what the host name
// resolves to, which on Debian is 127.0.1.1: no other machine reaches it.
//
// Empty where an interface is named, by `interface` or by GLOO_SOCKET_IFNAME: then Gloo should use
// that. 127.0.0.1 where all processes run on this machine. Otherwise the address from which
// MASTER_ADDR is reached, or the first of an interface that leads out of this machine. An Error
// names GLOO_SOCKET_IFNAME.
std::string address_for(const Environment& environment, const std::string& interface = "");

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
