// Where the processes of a run meet: an address and a port.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "core/fd.h"

namespace accelerant::meet {

struct Place {
  std::string host = "127.0.0.1";  // a name, or an address in digits
  int port = 0;
  bool several_machines = false;  // whether processes of other machines come here too

  // "127.0.0.1:29500", "[::1]:29500".
  std::string text() const;
};

// An address with its port, as system calls take it.
struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string text() const;
  bool is_loopback() const;
};

// What the host's name stands for, IPv4 first. On the main machine its own name may stand for
// nothing but a loopback address (127.0.1.1 on Debian), which no other machine can reach. If there
// are several machines, the address that leads to them then comes first.
struct Resolved {
  std::vector<Endpoint> endpoints = {};
  std::string reason = {};  // why there are none
};
Resolved resolve(const Place& place);

// A socket that is bound to the address of the place, and to no other one: what was asked for,
// never all addresses of this machine. It does not listen yet. Several sockets may be bound to a
// port (SO_REUSEADDR) as long as none listens.
struct Bound {
  Fd socket = {};           // not open if it cannot be bound
  int error = 0;            // errno
  std::string reason = {};  // "it is in use"
};
Bound bind_at(const Place& place);

// The port of a bound socket; 0 if the descriptor is not one.
int port_of(int socket);

// Whether only processes of this machine can reach a bound socket.
bool is_at_loopback(int socket);

// The address and port of the other end: "10.0.0.2:40112".
std::string peer_text(int socket);

}  // namespace accelerant::meet
