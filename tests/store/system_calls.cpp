#include "store/system_calls.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace system_calls {

Script& script() {
  static Script one;
  return one;
}

bool& can_exchange() {
  static bool can = true;
  return can;
}

bool& can_link() {
  static bool can = true;
  return can;
}

bool& waits_for_disk() {
  static bool waits = true;
  return waits;
}

namespace {

// The path relative to the root, "." for the root itself; none if it is outside.
std::optional<std::string> in_root(const std::string& path) {
  const std::string& root = script().root;
  if (root.empty() || !path.starts_with(root)) return std::nullopt;
  return path.size() == root.size() ? "." : path.substr(root.size() + 1);
}

std::optional<std::string> in_root(int fd) {
  if (script().root.empty()) return std::nullopt;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  char path[PATH_MAX];
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length < 0 ? std::nullopt : in_root(std::string(path, static_cast<std::size_t>(length)));
}

void record(const std::string& text) { script().recorded.push_back(text); }

bool is_interrupted() {
  if (script().interruptions == 0) return false;
  --script().interruptions;
  return true;
}

bool ends_like(const std::string& path, const std::string& end) {
  return !end.empty() && path.ends_with(end);
}

bool is_unreadable(int fd) {
  if (script().unreadable.empty()) return false;
  const auto path = in_root(fd);
  return path && ends_like(*path, script().unreadable);
}

int fail(int error_number) {
  errno = error_number;
  return -1;
}

}  // namespace
}  // namespace system_calls

using namespace system_calls;

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  if (const auto path = in_root(fd)) {
    if (is_interrupted()) return fail(EINTR);
    record("write " + *path);
    size = std::min(size, script().largest_write);
  }
  return ::syscall(SYS_write, fd, data, size);
}

ssize_t read(int fd, void* data, size_t size) {
  if (is_unreadable(fd)) return fail(EIO);
  return ::syscall(SYS_read, fd, data, size);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  if (is_unreadable(fd)) return fail(EIO);
  return ::syscall(SYS_pread64, fd, data, size, offset);
}

int fsync(int fd) {
  if (const auto path = in_root(fd)) {
    if (is_interrupted()) return fail(EINTR);
    if (ends_like(*path, script().unsyncable)) return fail(EIO);
    record("sync " + *path);
  }
  return waits_for_disk() ? static_cast<int>(::syscall(SYS_fsync, fd)) : 0;
}

int close(int fd) {
  const bool fails = script().is_close_interrupted && in_root(fd);
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  return fails ? fail(EINTR) : result;
}

int rename(const char* from, const char* to) noexcept {
  if (const auto path = in_root(to)) {
    if (ends_like(*path, script().unrenamable)) return fail(EIO);
    record("rename " + in_root(from).value_or(from) + " " + *path);
  }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  if (!can_exchange()) return fail(EINVAL);
  if (const auto path = in_root(to)) {
    record("exchange " + in_root(from).value_or(from) + " " + *path);
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int link(const char* from, const char* to) noexcept {
  if (!can_link()) return fail(EPERM);
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
}
