#include "meet/place.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include "meet/interfaces.h"

namespace accelerant::meet {
namespace {

int port_in(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

std::string with_port(const std::string& host, int port) {
  const bool is_six = host.find(':') != std::string::npos;
  return (is_six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_in_digits(const std::string& host) {
  in6_addr ignored = {};
  return ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

Resolved look_up(const std::string& host, int port) {
  addrinfo wanted = {};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &first);
  if (failed != 0) {
    return {.reason = host + " cannot be resolved (" + ::gai_strerror(failed) + ")"};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, ::freeaddrinfo);
  Resolved found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != family) continue;
      Endpoint endpoint = {.size = entry->ai_addrlen};
      ::memcpy(&endpoint.storage, entry->ai_addr, entry->ai_addrlen);
      found.endpoints.push_back(endpoint);
    }
  }
  if (found.endpoints.empty()) found.reason = host + " has no address";
  return found;
}

Fd reusable_socket(int family) {
  Fd made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (made.is_open()) ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  return made;
}

std::string reason_of_bind(int error, const Place& place, const Endpoint& endpoint) {
  if (error == EADDRINUSE) return "it is in use";
  if (error != EADDRNOTAVAIL) return ::strerror(error);
  const bool is_name = !is_in_digits(place.host);
  return (is_name ? place.host + ", which is " + endpoint.text() + "," : place.host) +
         " is not an address of this machine";
}

}  // namespace

std::string Place::text() const { return with_port(host, port); }

std::string Endpoint::text() const { return address_text(get()); }

bool Endpoint::is_loopback() const { return meet::is_loopback(text()); }

Resolved resolve(const Place& place) {
  Resolved found = look_up(place.host, place.port);
  const bool is_own_wish = is_in_digits(place.host) || place.host == "localhost";
  if (!place.several_machines || is_own_wish || found.endpoints.empty()) return found;
  const auto first_loopback =
      std::stable_partition(found.endpoints.begin(), found.endpoints.end(),
                            [](const Endpoint& endpoint) { return !endpoint.is_loopback(); });
  if (first_loopback != found.endpoints.begin()) return found;
  const auto others = address_to_others(addresses_of_this_machine());
  if (!others) return found;
  const Resolved better = look_up(*others, place.port);
  found.endpoints.insert(found.endpoints.begin(), better.endpoints.begin(), better.endpoints.end());
  return found;
}

Bound bind_at(const Place& place) {
  const Resolved resolved = resolve(place);
  if (resolved.endpoints.empty()) return {.error = EADDRNOTAVAIL, .reason = resolved.reason};
  // With a loopback address instead of another one, other machines would wait in vain.
  const bool loopback_counts = resolved.endpoints.front().is_loopback();
  Bound result;
  for (const Endpoint& endpoint : resolved.endpoints) {
    if (endpoint.is_loopback() && !loopback_counts) continue;
    Fd made = reusable_socket(endpoint.get()->sa_family);
    if (made.is_open() && ::bind(made.get(), endpoint.get(), endpoint.size) == 0) {
      return {.socket = std::move(made)};
    }
    const int error = errno;
    // The first one tells more than that IPv6 is off as well; a port in use tells most.
    if (result.error == 0 || error == EADDRINUSE) {
      result.error = error;
      result.reason = reason_of_bind(error, place, endpoint);
    }
    if (error == EADDRINUSE || error == EACCES) break;
  }
  return result;
}

int port_of(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return port_in(address);
}

bool is_at_loopback(int socket) {
  Endpoint own;
  own.size = sizeof own.storage;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0 &&
         own.is_loopback();
}

std::string peer_text(int socket) {
  Endpoint peer;
  peer.size = sizeof peer.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size) != 0) return "";
  return with_port(peer.text(), port_in(peer.storage));
}

}  // namespace accelerant::meet
