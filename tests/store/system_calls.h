// Sits between the library and the system: a test sees in which order files are written, synced and
// renamed, and can make calls fail. When linked into a program, these write(), read(), pread(),
// fsync(), close(), rename(), renameat2() and link() replace those of the C library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace system_calls {

// Only for files under `root`.
struct Script {
  std::string root = {};                   // nothing is changed or recorded while it is empty
  std::size_t largest_write = SIZE_MAX;    // one write takes at most this many bytes
  int interruptions = 0;                   // this many writes and fsyncs fail with EINTR first
  bool is_close_interrupted = false;       // close closes, but fails with EINTR
  std::string unsyncable = {};             // fsync fails with EIO for paths with this ending
  std::string unreadable = {};             // read fails with EIO for paths with this ending
  std::string unrenamable = {};            // rename to paths with this ending fails with EIO
  std::vector<std::string> recorded = {};  // "write model", "sync .", "rename a b", "exchange a b"
};
Script& script();

// Whether renameat2() can exchange two paths; not all disks can.
bool& can_exchange();

// Whether link() works; not all disks have links.
bool& can_link();

// Whether fsync() waits for the disk. Only a system crash shows the difference; tests that kill
// processes save minutes by not waiting.
bool& waits_for_disk();

// Applies to a folder during its lifetime.
class Scope {
 public:
  explicit Scope(const std::string& root) { script() = {.root = root}; }
  ~Scope() {
    script() = {};
    can_exchange() = true;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Script* operator->() const { return &script(); }
};

}  // namespace system_calls
