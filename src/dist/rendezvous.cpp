#include "dist/rendezvous.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/fd.h"
#include "core/texts.h"
#include "dist/message.h"
#include "dist/run_store.h"
#include "meet/place.h"
#include "meet/secret.h"
#include "meet/store_client.h"
#include "meet/store_server.h"
#include "watch/failure.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

milliseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
}

// For a wait that is not over: rounded to a tenth of a second.
std::string waited_text(milliseconds time) { return seconds_text(time - time % 100); }

// While it lives, says something after a while, and again each time the waiting time has doubled.
class Reminder {
 public:
  Reminder(milliseconds first, std::function<void(milliseconds waited)> say)
      : thread_([this, first, say = std::move(say)] { run(first, say); }) {}
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
  void run(milliseconds wait, const std::function<void(milliseconds waited)>& say) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    for (; !changed_.wait_until(lock, begin + wait, [&] { return done_; }); wait *= 2) {
      lock.unlock();  // the callback may take its time
      try {
        say(since(begin));
      } catch (...) {  // thrown by the program's own log handler: not a reason to stop
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

meet::Place place_of(const Environment& environment) {
  return {.host = environment.master_address,
          .port = environment.master_port,
          .several_machines = !environment.on_one_machine()};
}

std::string place_text(const Environment& environment) { return place_of(environment).text(); }

// The socket that the launcher passed on, unless a program in between has closed it, or a new one.
Fd listening_socket(const Environment& environment) {
  if (environment.listen_fd && meet::port_of(*environment.listen_fd) == environment.master_port) {
    Fd inherited(*environment.listen_fd);
    fcntl(inherited.get(), F_SETFD, FD_CLOEXEC);  // not for children of this process
    return inherited;
  }
  meet::Bound bound = meet::bind_at(place_of(environment));
  if (bound.socket.is_open()) return std::move(bound.socket);
  throw std::runtime_error(bound.reason);
}

// What users should know about who else can join a run without a secret; once per run.
void tell_who_can_join(const Environment& environment, bool is_at_loopback) {
  const std::string where = place_text(environment);
  if (environment.on_one_machine() && is_at_loopback) {
    log(LogLevel::debug, "this run has no secret: every user of this machine can connect to " +
                             where + "; ACCELERANT_SECRET_FILE or accelerant launch protects it");
    return;
  }
  const std::string advice =
      environment.on_one_machine()
          ? "All of them are on this machine: MASTER_ADDR=127.0.0.1 keeps other machines out. To "
            "keep its other users out too, make one with (umask 077; head -c 32 /dev/urandom > "
            "run.secret), and start with ACCELERANT_SECRET_FILE=run.secret"
          : "Make one with (umask 077; head -c 32 /dev/urandom > run.secret), copy it to every "
            "machine, and start with --secret-file run.secret or ACCELERANT_SECRET_FILE=run.secret";
  log(LogLevel::warning, "this run has no secret: whoever can connect to " + where +
                             " can read and change what its processes tell each other there. " +
                             advice);
}

std::unique_ptr<meet::StoreServer> serve_store(const Environment& environment,
                                               const std::optional<meet::Secret>& secret) {
  bool is_at_loopback = false;
  std::unique_ptr<meet::StoreServer> server;
  try {
    Fd socket = listening_socket(environment);
    is_at_loopback = meet::is_at_loopback(socket.get());
    server = std::make_unique<meet::StoreServer>(std::move(socket), secret);
  } catch (const std::exception& error) {
    throw Error(ErrorDetails{
        .problem = "The main process cannot serve the store at " + place_text(environment),
        .expected = "a free port at an address of this machine",
        .got = error.what(),
        .hint =
            "set MASTER_PORT to another port, or MASTER_ADDR to an address of this machine (here "
            "0.0.0.0 stands for all of them); `accelerant launch` finds a free port itself"});
  }
  if (!secret) tell_who_can_join(environment, is_at_loopback);
  return server;
}

c10::intrusive_ptr<c10d::Store> connect_to_launcher(const Environment& environment,
                                                    milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.waitWorkers = false;  // await_all waits, and names the missing processes
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
}

c10::intrusive_ptr<c10d::Store> connect_to_main_process(const Environment& environment,
                                                        const std::optional<meet::Secret>& secret,
                                                        milliseconds timeout) {
  auto client = std::make_unique<meet::StoreClient>(place_of(environment), secret, timeout);
  return c10::make_intrusive<RunStore>(std::move(client), timeout);
}

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout,
                                        milliseconds first_reminder) {
  std::optional<meet::Secret> secret;
  if (!environment.uses_agent_store && !environment.secret_file.empty()) {
    secret = meet::Secret::read(environment.secret_file);
  }
  if (environment.uses_agent_store && environment.is_main_process()) {
    log(LogLevel::debug,
        "the launcher serves the store of this run, so no secret protects it; accelerant launch "
        "starts runs with one");
  }
  std::unique_ptr<meet::StoreServer> server;
  if (environment.process_index == 0 && !environment.uses_agent_store) {
    server = serve_store(environment, secret);
  }
  const std::string where = place_text(environment);
  try {
    // The others keep trying until the store exists, without a message. One per machine should say
    // so.
    const bool is_beside_rank_0 = environment.process_index == environment.local_process_index;
    const int64_t speaker = is_beside_rank_0 && !environment.uses_agent_store ? 1 : 0;
    std::optional<Reminder> reminder;
    if (environment.local_process_index == speaker) {
      reminder.emplace(first_reminder, [&](milliseconds waited) {
        log(LogLevel::warning,
            c10::str("there is no store at ", where, " yet, after ", waited_text(waited),
                     "; waiting up to ", seconds_text(timeout), " (join_timeout). ",
                     environment.uses_agent_store ? "The launcher" : "Rank 0",
                     " serves it: check whether it is running"));
      });
    }
    auto store = environment.uses_agent_store
                     ? connect_to_launcher(environment, timeout)
                     : connect_to_main_process(environment, secret, timeout);
    // Never destroyed: other processes may still need it when the last World of this process is
    // gone. At the end of the process the system closes its connections.
    static auto* const kept = new std::unique_ptr<meet::StoreServer>();
    *kept = std::move(server);
    return store;
  } catch (const meet::StoreRefused& error) {
    throw Error(ErrorDetails{
        .problem =
            c10::str("Process ", environment.process_index, " cannot join the run at ", where),
        .got = error.what(),
        .hint = "give all processes the same secret, or none (--secret-file or "
                "ACCELERANT_SECRET_FILE), and check that MASTER_PORT is not that of another run"});
  } catch (const std::exception& error) {
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
  // Nobody to meet: a single process needs no port, and may have been started without one.
  if (environment.num_processes == 1) return c10::make_intrusive<c10d::HashStore>();
  // Never destroyed: a second World uses the connection too.
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
  throw Error(ErrorDetails{.problem = "A process can take part in only one run",
                           .expected = "the store at " + *where,
                           .got = "MASTER_ADDR and MASTER_PORT of another run, " + asked});
}

void await_all(c10d::Store& store, const std::string& stage, const Environment& environment,
               milliseconds timeout, milliseconds first_reminder) {
  const int64_t own = environment.process_index;
  const int64_t size = environment.num_processes;
  const auto is_there = [&](int64_t rank) { return store.check({c10::str(stage, "/", rank)}); };
  store.set(c10::str(stage, "/", own), "1");

  // Polls, because c10d would log its own warnings about a wait that times out. Checks one key at a
  // time, that of the first missing process: many processes ask the same store.
  int64_t first_missing = 0;
  const auto all_are_there = [&] {
    while (first_missing < size && (first_missing == own || is_there(first_missing)))
      ++first_missing;
    return first_missing == size;
  };
  const auto missing_ranks = [&] {
    std::vector<int64_t> missing;
    for (int64_t rank = first_missing; rank < size; ++rank)
      if (rank != own && !is_there(rank)) missing.push_back(rank);
    return missing;
  };
  // One process says it for all: the first one present.
  const auto is_first = [&] {
    for (int64_t rank = 0; rank < own; ++rank)
      if (rank < first_missing || is_there(rank)) return false;
    return true;
  };

  const auto begin = std::chrono::steady_clock::now();
  milliseconds reminder = first_reminder;
  milliseconds pause(2);
  while (!all_are_there()) {
    const milliseconds waited = since(begin);
    if (waited < std::min(reminder, timeout)) {
      std::this_thread::sleep_for(std::min(pause, std::min(reminder, timeout) - waited));
      pause = std::min(pause + pause / 2, milliseconds(200));
      continue;
    }
    const bool is_over = waited >= timeout;
    if (!is_over) reminder *= 2;
    if (!is_over && !is_first()) continue;
    const std::vector<int64_t> missing = missing_ranks();
    if (missing.empty()) return;  // the last one has just arrived
    if (is_over) {
      throw Error(ErrorDetails{
          .problem = c10::str("Not all processes have ", stage),
          .expected = c10::str(size, " processes within ", seconds_text(timeout)),
          .got = ranks_text(missing) + " missing",
          .hint = "look at the output of those processes; WORLD_SIZE must be the number of started "
                  "processes"});
    }
    log(LogLevel::warning,
        c10::str(ranks_text(missing), missing.size() == 1 ? " has" : " have", " not ", stage,
                 " yet, after ", waited_text(waited), "; waiting up to ", seconds_text(timeout),
                 " (join_timeout). Check whether ",
                 missing.size() == 1 ? "it is running" : "they are running"));
  }
}

}  // namespace accelerant::dist
