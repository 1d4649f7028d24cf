#include "store/lock_holder.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "core/files.h"

namespace accelerant::checkpoint {
namespace {

constexpr const char* kLockFormat = "accelerant-lock";

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string host_name() {
  if (!lock_rules().host.empty()) return lock_rules().host;
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown machine";
}

std::string boot_id() {
  if (!lock_rules().boot.empty()) return lock_rules().boot;
  return first_line_of("/proc/sys/kernel/random/boot_id");
}

std::string own_pid_namespace() {
  std::array<char, 64> name = {};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size());
  return length <= 0 ? "" : std::string(name.data(), static_cast<std::size_t>(length));
}

std::string utc_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string new_id() {
  std::random_device random;  // every process has its own, also after a fork
  std::array<char, 13> text = {};
  const std::uint64_t value = (std::uint64_t{random()} << 32 | random()) & 0xffffffffffff;
  std::snprintf(text.data(), text.size(), "%012llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string folder_of_process(std::int64_t pid) {
  return lock_rules().proc + "/" + std::to_string(pid);
}

// What /proc says about a process, or about one of its threads.
struct ProcessStatus {
  char state = '?';
  std::uint64_t flags = 0;
  std::int64_t threads = 0;
  std::uint64_t start = 0;
};

std::optional<ProcessStatus> status_in(const std::string& folder) {
  const std::string line = first_line_of(folder + "/stat");
  const std::size_t name_end = line.rfind(')');  // a name may contain anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStatus found;
  fields >> found.state;  // field 3 of proc(5)
  std::string skipped;
  for (int field = 4; field < 9; ++field) fields >> skipped;
  fields >> found.flags;
  for (int field = 10; field < 20; ++field) fields >> skipped;
  fields >> found.threads >> skipped >> found.start;
  return fields ? std::optional(found) : std::nullopt;
}

// The rest of the line "<key> ..." in the longer form of the status; empty if there is none.
std::string status_line_in(const std::string& folder, const std::string& key) {
  std::ifstream file(folder + "/status");
  for (std::string found, value; file >> found && std::getline(file, value);) {
    if (found == key) return value;
  }
  return "";
}

// Signals that wait until the thread returns from the kernel.
std::uint64_t pending_signals_in(const std::string& folder) {
  return std::strtoull(status_line_in(folder, "SigPnd:").c_str(), nullptr, 16);
}

// Whether /proc shows the processes under the ids that they have for this one. A process that was
// put into a pid namespace of its own may still see the /proc of the namespace outside, where the
// ids of its neighbours belong to strangers.
bool can_look_at_processes() {
  // The ids of this process, from the namespace of /proc inwards.
  std::istringstream ids(status_line_in("/proc/self", "NSpid:"));
  std::int64_t id = 0;
  std::int64_t inner = 0;
  if (!(ids >> id)) std::istringstream(first_line_of("/proc/self/stat")) >> id;  // before Linux 4.1
  return id == ::getpid() && !(ids >> inner);
}

// Whether no thread will ever return from the kernel. When a process is killed, or exits, the
// kernel notes SIGKILL for each of its threads; a thread that is waiting for a disk obeys later.
bool is_ending(std::int64_t pid) {
  constexpr std::uint64_t exiting = 4;  // PF_EXITING
  constexpr std::uint64_t killed = std::uint64_t{1} << (SIGKILL - 1);
  const std::string threads = folder_of_process(pid) + "/task";
  try {
    for (const std::string& thread : entries_of(threads)) {
      const std::string folder = join_path(threads, thread);
      const auto status = status_in(folder);
      if (!status || status->state == 'Z' || status->state == 'X') continue;
      if ((status->flags & exiting) == 0 && (pending_signals_in(folder) & killed) == 0) {
        return false;
      }
    }
  } catch (const SystemError& error) {
    return error.number() == ENOENT || error.number() == ESRCH;  // it has just ended
  }
  return true;
}

}  // namespace

LockRules& lock_rules() {
  static LockRules rules;
  return rules;
}

LockHolder this_process_as_holder() {
  const auto status = can_look_at_processes() ? status_in("/proc/self") : std::nullopt;
  return {.id = new_id(),
          .host = host_name(),
          .boot = status ? boot_id() : "",
          .pid_namespace = own_pid_namespace(),
          .pid = ::getpid(),
          .start = status ? status->start : 0,
          .since = utc_now()};
}

std::string to_text(const LockHolder& holder) {
  const nlohmann::json text = {{"format", kLockFormat},
                               {"id", holder.id},
                               {"host", holder.host},
                               {"boot", holder.boot},
                               {"pid_namespace", holder.pid_namespace},
                               {"pid", holder.pid},
                               {"start", holder.start},
                               {"since", holder.since}};
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<LockHolder> parse_holder(const std::string& text) {
  try {
    const auto values = nlohmann::json::parse(text);
    if (values.at("format").get<std::string>() != kLockFormat) return std::nullopt;
    LockHolder holder{.id = values.at("id").get<std::string>(),
                      .host = values.at("host").get<std::string>(),
                      .boot = values.at("boot").get<std::string>(),
                      .pid_namespace = values.at("pid_namespace").get<std::string>(),
                      .pid = values.at("pid").get<std::int64_t>(),
                      .start = values.at("start").get<std::uint64_t>(),
                      .since = values.at("since").get<std::string>()};
    // The id becomes part of file names.
    const bool is_id = holder.id.size() == 12 &&
                       holder.id.find_first_not_of("0123456789abcdef") == std::string::npos;
    return is_id ? std::optional(std::move(holder)) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Life life_of(const LockHolder& holder) {
  const bool is_in_sight =
      !holder.boot.empty() && holder.boot == boot_id() && !holder.pid_namespace.empty() &&
      holder.pid_namespace == own_pid_namespace() && holder.pid > 0 && can_look_at_processes();
  if (!is_in_sight) return Life::unknown;
  if (holder.pid == ::getpid()) return Life::ended;
  const auto status = status_in(folder_of_process(holder.pid));
  if (!status) {
    // /proc may hide the processes of other users, of which kill() tells only that they exist.
    const bool exists = ::kill(static_cast<pid_t>(holder.pid), 0) == 0 || errno != ESRCH;
    return exists ? Life::unknown : Life::ended;
  }
  if (status->start != holder.start) return Life::ended;
  // The first thread may have ended before the others.
  const bool is_zombie = status->state == 'Z' || status->state == 'X';
  if (is_zombie && status->threads <= 1) return Life::ended;
  if (is_ending(holder.pid)) return Life::ending;
  return status->state == 'T' || status->state == 't' ? Life::stopped : Life::running;
}

std::string text_of(const LockHolder& holder) {
  return "process " + std::to_string(holder.pid) + " on " + holder.host + ", since " + holder.since;
}

}  // namespace accelerant::checkpoint
