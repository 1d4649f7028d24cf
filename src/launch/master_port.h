// The port at which the ranks meet.
#pragma once

#include "core/fd.h"

namespace accelerant::launch {

// A socket that is bound to the port on all addresses, IPv4 and IPv6, and does not listen: rank 0
// inherits it and listens, so nobody can take the port in between. A program that knows nothing of
// this binds the port itself; Linux allows it with SO_REUSEADDR as long as nobody listens.
struct MasterPort {
  Fd socket = {};
  int port = 0;
};

// `port` 0 takes a free one. A port that is in use or not allowed is an Error.
MasterPort bind_master_port(int port);

}  // namespace accelerant::launch
