// The process that holds a lock, written down such that others can find out whether it still lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace accelerant::checkpoint {

struct LockHolder {
  std::string id = {};             // 12 random hexadecimal digits, new for every lock
  std::string host = {};           // the machine's name, for people
  std::string boot = {};           // identifies the machine and its last start; "" if unknown, or
                                   // if the process could not see itself in /proc
  std::string pid_namespace = {};  // where `pid` means something: containers have their own
  std::int64_t pid = 0;
  std::uint64_t start = 0;  // when the process started, in the kernel's ticks: pids are used again
  std::string since = {};   // when it took the lock, UTC: "2026-11-18T20:14:05Z"
};

// This process, with a new id, as of now.
LockHolder this_process_as_holder();

// For the file of a lock. parse_holder returns nothing for anything else, such as a file that is
// being written.
std::string to_text(const LockHolder& holder);
std::optional<LockHolder> parse_holder(const std::string& text);

enum class Life {
  running,
  stopped,  // by a signal, or a debugger; it may continue at any time
  ending,   // killed, but a thread is still in a call to the system, such as a sync of a slow disk
  ended,
  // It runs where this process cannot look: on another machine, in another container, or in one that
  // has the /proc of another.
  unknown,
};

// Trusts process ids only within one start of one machine and one pid namespace. A process that had
// this process's id and start is one that this process has replaced by exec, so it has ended.
Life life_of(const LockHolder& holder);

// "process 4711 on node17, since 2026-11-18T20:14:05Z".
std::string text_of(const LockHolder& holder);

// How long a holder that cannot be looked at counts as alive, and who this process is. Tests change
// it to play several machines.
struct LockRules {
  // A holder renews its lock this often, whatever else it does.
  std::chrono::milliseconds renewal = std::chrono::seconds(15);

  // Without a renewal for so long, the lock of such a holder can be taken over.
  std::chrono::milliseconds lease = std::chrono::seconds(90);

  // Instead of those of this machine, unless empty.
  std::string host = {};
  std::string boot = {};

  // Where the kernel tells about other processes.
  std::string proc = "/proc";
};
LockRules& lock_rules();

}  // namespace accelerant::checkpoint
