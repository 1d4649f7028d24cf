#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "accelerant/core/error.h"
#include "core/files.h"

namespace accelerant {
namespace {

[[noreturn]] void refuse_irregular(const std::string& path, mode_t mode) {
  throw Error(ErrorDetails{.problem = path + ": not a file",
                           .expected = "a regular file",
                           .got = S_ISDIR(mode)    ? "a folder"
                                  : S_ISFIFO(mode) ? "a pipe"
                                  : S_ISSOCK(mode) ? "a socket"
                                                   : "a device",
                           .hint = S_ISFIFO(mode) ? "write it to a file first" : ""});
}

}  // namespace

RegularFile open_regular_file(const std::string& path, const std::string& failure) {
  // What was opened is examined, not the path: it could lead elsewhere a moment later.
  RegularFile file{.fd = Fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC))};
  const int opening = errno;
  struct stat status = {};
  if (!file.fd.is_open()) {
    // A socket cannot be opened, and the system's reason would not say that it is one.
    if (opening == ENXIO && ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      refuse_irregular(path, status.st_mode);
    }
    throw_system_error(path + failure, opening);
  }
  if (::fstat(file.fd.get(), &status) != 0) throw_system_error(path + failure, errno);
  if (!S_ISREG(status.st_mode)) refuse_irregular(path, status.st_mode);
  file.size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

}  // namespace accelerant
