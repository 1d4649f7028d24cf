#include "core/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "core/fd.h"
#include "core/regular_file.h"

namespace accelerant {
namespace {

std::string hint_for(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or write to another disk";
    case EROFS:
    case EACCES:
    case EPERM:
      return "check the permissions of the folder, or choose another one";
    case ESTALE:
      return "mount the network disk again";
    default:
      return "";
  }
}

// Whether this call created the folder.
bool try_make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) throw_system_error("The folder " + path + " cannot be created", errno);
  return false;
}

enum class Links { follow, keep };

// Empty if there is nothing.
std::optional<struct stat> status_of(const std::string& path, Links links) {
  struct stat status = {};
  const int result =
      links == Links::follow ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status);
  if (result == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_system_error(path + " cannot be accessed", errno);
}

bool is_real_folder(const std::string& path) {
  const auto status = status_of(path, Links::keep);
  return status && S_ISDIR(status->st_mode);
}

}  // namespace

SystemError::SystemError(const std::string& problem, int error_number)
    : Error(ErrorDetails{.problem = problem + ": " + std::strerror(error_number),
                         .hint = hint_for(error_number)}),
      number_(error_number) {}

bool SystemError::is_full_disk() const { return number_ == ENOSPC || number_ == EDQUOT; }

void throw_system_error(const std::string& problem, int error_number) {
  throw SystemError(problem, error_number);
}

bool path_exists(const std::string& path) { return status_of(path, Links::keep).has_value(); }

bool is_link(const std::string& path) {
  const auto status = status_of(path, Links::keep);
  return status && S_ISLNK(status->st_mode);
}

bool is_folder(const std::string& path) {
  const auto status = status_of(path, Links::follow);
  return status && S_ISDIR(status->st_mode);
}

std::optional<std::uint64_t> size_of_file(const std::string& path) {
  const auto status = status_of(path, Links::follow);
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status->st_size);
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder.empty()) return name;
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::string folder_of(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string name_of(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return "";
  const size_t slash = path.rfind('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

std::vector<std::string> entries_of(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), &::closedir);
  if (!stream) throw_system_error("The folder " + folder + " cannot be read", errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) throw_system_error("The folder " + folder + " cannot be read", errno);
  std::ranges::sort(names);
  return names;
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (try_make_folder(folder)) sync_folder(folder_of(folder));
    if (end == std::string::npos) break;
  }
  if (!is_folder(path)) throw_system_error("The folder " + path + " cannot be created", ENOTDIR);
}

void make_folder(const std::string& path) {
  if (!try_make_folder(path)) {
    throw_system_error("The folder " + path + " cannot be created", EEXIST);
  }
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw_system_error(from + " cannot be renamed to " + to, errno);
  }
}

bool exchange_paths(const std::string& one, const std::string& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP) return false;
  throw_system_error(one + " and " + other + " cannot be exchanged", errno);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw_system_error(path + " cannot be removed", errno);
  }
}

void remove_tree(const std::string& path) {
  failpoint("files.remove_entry");
  if (!is_real_folder(path)) {
    remove_file(path);
    return;
  }
  for (const std::string& name : entries_of(path)) remove_tree(join_path(path, name));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) {
    throw_system_error(path + " cannot be removed", errno);
  }
}

void sync_folder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync folders and report EINVAL. Nothing can be done about that.
  if (!folder.is_open() || (!sync_fd(folder.get()) && errno != EINVAL)) {
    throw_system_error("The folder " + path + " cannot be synced", errno);
  }
}

void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    // A write of 0 bytes should never happen. Treat it as a full disk: retrying could loop forever.
    if (done <= 0) throw_system_error(path + " cannot be written", done < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

bool sync_fd(int fd) {
  int result = 0;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

std::string read_file(const std::string& path, std::size_t limit) {
  const auto refuse = [&](int error_number) {
    throw_system_error(path + " cannot be read", error_number);
  };
  const RegularFile file = open_regular_file(path);
  if (file.size > limit) refuse(EFBIG);
  std::string text;
  try {
    text.resize(file.size);
  } catch (const std::bad_alloc&) {
    refuse(ENOMEM);
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.fd.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(errno);
    if (got == 0) break;  // the file has shrunk
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace accelerant
