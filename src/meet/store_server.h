// Serves the store of a run to its processes: a thread with one event loop.
//
// Nobody gets anything before the handshake (handshake.h). A connection that has not proven itself
// can send 80 bytes and has a few seconds; there are only so many of them, and a new one takes the
// place of the oldest. None of them, and no process that is stopped or killed, delays the others:
// the loop never waits for one connection.
//
// A process has one request under way per connection. One that waits for keys is answered when they
// exist or its time is over. If the process of the server ends, the others notice at once, because
// the system closes its connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>

#include "core/fd.h"
#include "meet/secret.h"

namespace accelerant::meet {

struct StoreServerLimits {
  // How long a connection may take for the handshake.
  std::chrono::milliseconds introduction = std::chrono::seconds(5);
  // How many connections may be in the handshake at once.
  std::size_t strangers = 256;
  // How long a connection in the handshake keeps its place if others want it.
  std::chrono::milliseconds patience = std::chrono::milliseconds(500);
};

class StoreServer {
 public:
  // Listens on the bound socket. Without a secret everybody is welcome. Throws Error if the socket
  // cannot listen: another program may listen at its port.
  StoreServer(Fd socket, std::optional<Secret> secret, StoreServerLimits limits = {});
  ~StoreServer();  // closes all connections
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace accelerant::meet
