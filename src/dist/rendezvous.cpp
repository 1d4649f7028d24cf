#include "dist/rendezvous.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "dist/failure.h"
#include "dist/watch.h"

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

std::string seconds_text(milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

// Says something after a while, and again each time that twice the time has passed, while it lives.
class Reminder {
 public:
  Reminder(milliseconds first, std::function<void(milliseconds waited)> say)
      : thread_([this, wait = first, say = std::move(say)]() mutable {
          const auto begin = std::chrono::steady_clock::now();
          std::unique_lock lock(mutex_);
          for (; !changed_.wait_until(lock, begin + wait, [&] { return done_; }); wait *= 2)
            say(wait);
        }) {}
  ~Reminder() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Reminder(const Reminder&) = delete;
  Reminder& operator=(const Reminder&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout,
                                        milliseconds first_reminder) {
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
    // Others try again and again until it is there, and say nothing meanwhile.
    std::optional<Reminder> reminder;
    if (!serves) {
      reminder.emplace(first_reminder, [&](milliseconds waited) {
        log(LogLevel::warning,
            c10::str("there is no store at ", where, " yet, after ", seconds_text(waited),
                     "; waiting up to ", seconds_text(timeout), " (join_timeout). It is served by ",
                     environment.uses_agent_store ? "the launcher" : "rank 0",
                     ": look whether that has ended"));
      });
    }
    return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  } catch (const std::exception& error) {
    if (serves) {
      throw Error(ErrorDetails{
          .problem = c10::str("The main process cannot serve the store at ", where),
          .expected = "a free port on this machine, at an address of this machine",
          .got = c10d_message(error.what()),
          .hint = "set MASTER_PORT to another port (MASTER_ADDR must be this machine); `accelerant "
                  "launch` finds a free one by itself"});
    }
    throw Error(ErrorDetails{
        .problem =
            c10::str("Process ", environment.process_index, " cannot reach the store at ", where),
        .expected = "the main process, or its launcher, listening there",
        .got = c10d_message(error.what()),
        .hint = "check MASTER_ADDR and MASTER_PORT, and whether the main process is running"});
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> store_of(const Environment& environment, milliseconds timeout,
                                         milliseconds first_reminder) {
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
    *store = connect(environment, timeout, first_reminder);
    *where = asked;
  }
  if (*where == asked) return *store;
  throw Error(ErrorDetails{.problem = "A process takes part in one run only",
                           .expected = "the store at " + *where,
                           .got = "MASTER_ADDR and MASTER_PORT of another one, " + asked});
}

void await_all(c10d::Store& store, const std::string& stage, const Environment& environment,
               milliseconds timeout, milliseconds first_reminder) {
  const auto key = [&](int64_t rank) { return c10::str(stage, "/", rank); };
  store.set(key(environment.process_index), "1");
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < environment.num_processes; ++rank) keys.push_back(key(rank));
  const auto missing_ranks = [&] {
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < environment.num_processes; ++rank) {
      if (!store.check({key(rank)})) missing.push_back(rank);
    }
    return missing;
  };

  // Asks again and again: of a wait that ends by its time c10d would log warnings of its own.
  const auto begin = std::chrono::steady_clock::now();
  milliseconds reminder = first_reminder;
  milliseconds pause(2);
  while (!store.check(keys)) {
    const auto waited =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    if (waited < std::min(reminder, timeout)) {
      std::this_thread::sleep_for(std::min(pause, std::min(reminder, timeout) - waited));
      pause = std::min(pause + pause / 2, milliseconds(200));
      continue;
    }
    const std::vector<int64_t> missing = missing_ranks();
    if (missing.empty()) return;  // the last came just now
    if (waited >= timeout) {
      throw Error(ErrorDetails{
          .problem = "Not all processes have come",
          .expected =
              c10::str(environment.num_processes, " processes within ", seconds_text(timeout)),
          .got = ranks_text(missing) + " missing",
          .hint = "look at the output of those processes; WORLD_SIZE must be the number that is "
                  "started"});
    }
    // One says it for all: the first that is there, before whom all are missing.
    const auto before = static_cast<size_t>(environment.process_index);
    const bool is_first = before == 0 || (missing.size() >= before &&
                                          missing[before - 1] == environment.process_index - 1);
    if (is_first) {
      log(LogLevel::warning,
          c10::str(ranks_text(missing), missing.size() == 1 ? " has" : " have",
                   " not come yet, after ", seconds_text(reminder), "; waiting up to ",
                   seconds_text(timeout), " (join_timeout). Look whether ",
                   missing.size() == 1 ? "it has ended" : "they have ended"));
    }
    reminder *= 2;
  }
}

}  // namespace accelerant::dist
