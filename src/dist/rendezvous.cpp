#include "dist/rendezvous.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <mutex>

#include "accelerant/core/error.h"
#include "dist/failure.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

// Whether the descriptor is still the socket that the launcher passed on: a program in between may have closed it.
bool is_bound_to(int descriptor, int port) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port) == port;
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port) == port;
  }
  return false;
}

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout) {
  const bool serves = environment.process_index == 0 && !environment.uses_agent_store;
  const std::string where = c10::str(environment.master_address, ":", environment.master_port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = serves;
  options.waitWorkers = false;  // await_all waits, and names those missing
  options.timeout = timeout;
  if (serves && environment.listen_fd &&
      is_bound_to(*environment.listen_fd, environment.master_port)) {
    options.masterListenFd = environment.listen_fd;
    fcntl(*environment.listen_fd, F_SETFD, FD_CLOEXEC);  // not for children of this process
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  } catch (const std::exception& error) {
    if (serves) {
      throw Error(ErrorDetails{
          .problem = c10::str("The main process cannot serve the store at ", where),
          .expected = "a free port on this machine, at an address of this machine",
          .got = brief(error.what()),
          .hint = "set MASTER_PORT to another port (MASTER_ADDR must be this machine); `accelerant "
                  "launch` finds a free one by itself"});
    }
    throw Error(ErrorDetails{
        .problem =
            c10::str("Process ", environment.process_index, " cannot reach the store at ", where),
        .expected = "the main process, or its launcher, listening there",
        .got = brief(error.what()),
        .hint = "check MASTER_ADDR and MASTER_PORT, and whether the main process is running"});
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> store_of(const Environment& environment, milliseconds timeout) {
  // Nobody to meet: a process alone needs no port, and may have been started without one.
  if (environment.num_processes == 1) return c10::make_intrusive<c10d::HashStore>();
  // Never destroyed: other processes may still need the one that is served from here when the last
  // World of this process is gone, and nothing is lost by closing it with the process.
  static std::mutex mutex;
  static auto* store = new c10::intrusive_ptr<c10d::Store>();
  static auto* where = new std::string();
  const std::string asked = c10::str(environment.master_address, ":", environment.master_port);
  const std::lock_guard lock(mutex);
  if (!*store) {
    *store = connect(environment, timeout);
    *where = asked;
  }
  if (*where == asked) return *store;
  throw Error(ErrorDetails{.problem = "A process takes part in one run only",
                           .expected = "the store at " + *where,
                           .got = "MASTER_ADDR and MASTER_PORT of another one, " + asked});
}

void await_all(c10d::Store& store, const std::string& stage, const Environment& environment,
               milliseconds timeout) {
  const auto key = [&](int64_t rank) { return c10::str(stage, "/", rank); };
  store.set(key(environment.process_index), "1");
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < environment.num_processes; ++rank) keys.push_back(key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::string missing;
    for (int64_t rank = 0; rank < environment.num_processes; ++rank) {
      if (!store.check({key(rank)})) missing += c10::str(missing.empty() ? "" : ", ", rank);
    }
    throw Error(ErrorDetails{
        .problem = "Not all processes have come",
        .expected =
            c10::str(environment.num_processes, " processes within ", timeout.count() / 1000, " s"),
        .got = missing.empty() ? brief(error.what()) : "none of rank " + missing,
        .hint = "look at the output of those processes; WORLD_SIZE must be the number that is "
                "started"});
  }
}

}  // namespace accelerant::dist
