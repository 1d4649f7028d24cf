// The addresses of this machine.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

namespace accelerant::meet {

struct InterfaceAddress {
  std::string interface = {};
  std::string address = {};
  bool loopback = false;
};

// Only of interfaces that are up.
std::vector<InterfaceAddress> addresses_of_this_machine();

// The best address for other machines among those of interfaces that are up: IPv4 before IPv6,
// bridges to containers and virtual machines last. Nothing if there are only loopback addresses.
std::optional<std::string> address_to_others(const std::vector<InterfaceAddress>& addresses);

// "10.0.0.1", of an IPv4 or IPv6 address.
std::string address_text(const sockaddr* address);

// Of an address in digits: whether it leads to the machine itself.
bool is_loopback(const std::string& address);

}  // namespace accelerant::meet
