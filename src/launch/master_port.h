// The port at which the ranks meet.
#pragma once

#include "core/fd.h"

namespace accelerant::launch {

// A socket that is bound to the port on all addresses, IPv4 and IPv6, but does not listen: rank 0
// inherits it and listens, so nobody can take the port in between. A program that does not know of
// it binds the port itself; Linux allows that with SO_REUSEADDR as long as nobody listens.
struct MasterPort {
  Fd socket = {};
  int port = 0;
};

// `port` 0 picks a free one. Throws Error if the port is in use or not allowed.
MasterPort bind_master_port(int port);

}  // namespace accelerant::launch
