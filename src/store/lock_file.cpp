#include "store/lock_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "core/fd.h"
#include "core/files.h"

namespace accelerant::checkpoint {
namespace {

std::int64_t nanoseconds_of(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// False if there is such a file.
bool write_new(const std::string& path, const std::string& text) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open() && errno == EEXIST) return false;
  if (!file.is_open()) throw_system_error(path + " cannot be created", errno);
  try {
    write_all(file.get(), std::as_bytes(std::span(text)), path);
    if (!file.close()) throw_system_error(path + " cannot be written", errno);
  } catch (const Error&) {
    drop_name(path);
    throw;
  }
  return true;
}

bool are_the_same_file(const std::string& one, const std::string& other) {
  struct stat first = {};
  struct stat second = {};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

std::optional<LockFile> read_lock_file(const std::string& path) {
  constexpr std::size_t kLongest = 1 << 16;
  // Opening makes network disks ask the server instead of their cache.
  const Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    // ESTALE: it was replaced on the server at this moment.
    if (errno == ENOENT || errno == ESTALE) return std::nullopt;
    throw_system_error(path + " cannot be read", errno);
  }
  std::string text(kLongest, '\0');
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  if (length < 0) throw_system_error(path + " cannot be read", errno);
  text.resize(static_cast<std::size_t>(length));
  LockFile found{.holder = parse_holder(text), .renewed = nanoseconds_of(status.st_mtim)};
  found.id = found.holder ? found.holder->id : "unknown-" + std::to_string(status.st_ino);
  return found;
}

void drop_name(const std::string& path) { static_cast<void>(::unlink(path.c_str())); }

LockCandidate::LockCandidate(const std::string& lock, const LockHolder& holder)
    : path_(lock + "." + holder.id), text_(to_text(holder)) {
  if (!write_new(path_, text_)) throw_system_error(path_ + " cannot be created", EEXIST);
}

LockCandidate::~LockCandidate() { drop_name(path_); }

bool LockCandidate::put_new(const std::string& path) const {
  if (::link(path_.c_str(), path.c_str()) == 0) return true;
  switch (errno) {
    case EEXIST:
      // The answer of a network disk may have been lost, and its second attempt finds the first.
      return are_the_same_file(path_, path);
    case EPERM:
    case EOPNOTSUPP:
    case ENOSYS:
      // A disk without links. For a moment the file has no content; then it counts as in use.
      return write_new(path, text_);
    default:
      throw_system_error(path + " cannot be created", errno);
  }
}

std::int64_t LockCandidate::disk_time() const {
  struct stat status = {};
  if (::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0) != 0 ||
      ::stat(path_.c_str(), &status) != 0) {
    throw_system_error(path_ + " cannot be accessed", errno);
  }
  return nanoseconds_of(status.st_mtim);
}

}  // namespace accelerant::checkpoint
