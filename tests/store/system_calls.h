// Stands between the library and the system: a test sees in which order files are written, synced
// and renamed, and can let calls fail. Linked into a program, these write(), fsync(), close(),
// rename() and renameat2() take the place of those of the C library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace system_calls {

// For files under `root` only.
struct Script {
  std::string root = {};                   // nothing is changed or recorded while it is empty
  std::size_t largest_write = SIZE_MAX;    // one write takes so many bytes at most
  int interruptions = 0;                   // so many calls of write and fsync fail with EINTR first
  bool is_close_interrupted = false;       // close closes, and fails with EINTR
  std::string unsyncable = {};             // fsync fails with EIO for paths that end like this
  std::string unrenamable = {};            // rename fails with EIO to paths that end like this
  std::vector<std::string> recorded = {};  // "write model", "sync .", "rename a b", "exchange a b"
};
Script& script();

// Whether renameat2() can exchange two paths, as not all disks can.
bool& can_exchange();

// Whether fsync() waits for the disk. Only a machine that crashes shows the difference; tests that
// kill processes save minutes by not waiting.
bool& waits_for_disk();

// Applies to a folder as long as it lives.
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
