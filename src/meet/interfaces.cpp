#include "meet/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <memory>

namespace accelerant::meet {
namespace {

// Bridges to containers and virtual machines have addresses that mean nothing elsewhere.
bool is_bridge(const std::string& interface) {
  for (const char* prefix : {"docker", "virbr", "veth", "br-", "cni", "lxcbr", "lxdbr"})
    if (interface.starts_with(prefix)) return true;
  return false;
}

}  // namespace

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET)
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  else
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text, sizeof(text)) == nullptr ? "" : text;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

std::vector<InterfaceAddress> addresses_of_this_machine() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found.push_back({.interface = entry->ifa_name,
                     .address = address_text(entry->ifa_addr),
                     .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

std::optional<std::string> address_to_others(const std::vector<InterfaceAddress>& addresses) {
  for (const bool bridges : {false, true}) {
    for (const bool version_6 : {false, true}) {
      for (const InterfaceAddress& entry : addresses) {
        if (entry.loopback || is_loopback(entry.address)) continue;
        if (is_bridge(entry.interface) != bridges) continue;
        if ((entry.address.find(':') != std::string::npos) != version_6) continue;
        // Valid only on one link, and only together with the number of the interface.
        if (entry.address.starts_with("fe80:")) continue;
        return entry.address;
      }
    }
  }
  return std::nullopt;
}

}  // namespace accelerant::meet
