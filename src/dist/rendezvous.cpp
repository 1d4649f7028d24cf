#include "dist/rendezvous.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <mutex>

#include "accelerant/core/error.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout) {
  const bool serves = environment.process_index == 0 && !environment.uses_agent_store;
  const std::string where = c10::str(environment.master_address, ":", environment.master_port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = serves;
  options.waitWorkers = false;  // await_all waits, and names those missing
  options.timeout = timeout;
  if (serves) options.masterListenFd = environment.listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  } catch (const std::exception& error) {
    if (serves) {
      throw Error(ErrorDetails{
          .problem = c10::str("The main process cannot serve the store at ", where),
          .expected = "a free port on this machine, at an address of this machine",
          .got = error.what(),
          .hint =
              "set MASTER_PORT to another port (MASTER_ADDR must be this machine), or start with "
              "`accelerant launch`, which finds a free one"});
    }
    throw Error(ErrorDetails{
        .problem =
            c10::str("Process ", environment.process_index, " cannot reach the store at ", where),
        .expected = "the main process, or its launcher, listening there",
        .got = error.what(),
        .hint = "check MASTER_ADDR and MASTER_PORT, and whether the main process is running"});
  }
}

std::string joined_key(int64_t rank) { return c10::str("joined/", rank); }

}  // namespace

c10::intrusive_ptr<c10d::Store> store_of(const Environment& environment, milliseconds timeout) {
  // Never destroyed: other processes may still need the one that is served from here when the last
  // World of this process is gone, and nothing is lost by closing it with the process.
  static std::mutex mutex;
  static auto* store = new c10::intrusive_ptr<c10d::Store>();
  const std::lock_guard lock(mutex);
  if (!*store) *store = connect(environment, timeout);
  return *store;
}

void await_all(c10d::Store& store, const Environment& environment, milliseconds timeout) {
  store.set(joined_key(environment.process_index), "1");
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < environment.num_processes; ++rank) keys.push_back(joined_key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::string missing;
    for (int64_t rank = 0; rank < environment.num_processes; ++rank) {
      if (!store.check({joined_key(rank)})) missing += c10::str(missing.empty() ? "" : ", ", rank);
    }
    throw Error(ErrorDetails{
        .problem = "Not all processes have come",
        .expected =
            c10::str(environment.num_processes, " processes within ", timeout.count() / 1000, " s"),
        .got = missing.empty() ? std::string(error.what()) : "none of rank " + missing,
        .hint = "look at the output of those processes; WORLD_SIZE must be the number that is "
                "started"});
  }
}

}  // namespace accelerant::dist
