// The port at which the ranks meet.
#pragma once

#include <string>

#include "core/fd.h"
#include "meet/place.h"

namespace accelerant::launch {

// A socket that is bound to the port, but does not listen: rank 0 inherits it and listens, so nobody
// can take the port in between. It is bound to the address of the place only. A program that does
// not know of it binds the port itself; Linux allows that with SO_REUSEADDR as long as nobody
// listens.
struct MasterPort {
  Fd socket = {};
  int port = 0;
};

// Port 0 picks one that is free at all addresses. Throws Error if the port is in use, at whatever
// address, or not allowed, or if the address is not one of this machine.
MasterPort bind_master_port(const meet::Place& place = {});

}  // namespace accelerant::launch
