#include "core/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
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

[[noreturn]] void refuse_to_read_folder(const std::string& path, int error_number) {
  throw_system_error("The folder " + path + " cannot be read", error_number);
}

std::vector<std::string> names_in(DIR* folder, const std::string& path) {
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(folder);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) refuse_to_read_folder(path, errno);
  std::ranges::sort(names);
  return names;
}

using FolderStream = std::unique_ptr<DIR, int (*)(DIR*)>;

std::vector<std::string> names_in(const Fd& folder, const std::string& path) {
  Fd own(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0));
  const FolderStream stream(own.is_open() ? ::fdopendir(own.get()) : nullptr, &::closedir);
  if (!stream) refuse_to_read_folder(path, errno);
  own.release();
  return names_in(stream.get(), path);
}

// Not open if the entry is missing, or is anything but a folder.
Fd open_folder_in(const Fd& parent, const std::string& name, const std::string& path) {
  struct stat status = {};
  if (::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return Fd();
    throw_system_error(path + " cannot be accessed", errno);
  }
  if (!S_ISDIR(status.st_mode)) return Fd();
  Fd folder(::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool is_no_folder_now = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  if (!folder.is_open() && !is_no_folder_now) refuse_to_read_folder(path, errno);
  return folder;
}

struct stat status_of(const Fd& folder, const std::string& path) {
  struct stat status = {};
  if (::fstat(folder.get(), &status) != 0) throw_system_error(path + " cannot be accessed", errno);
  return status;
}

// The folder above, which has to be the one from which this one was entered.
Fd open_parent(const Fd& folder, const struct stat& expected, const std::string& path) {
  Fd parent(::openat(folder.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!parent.is_open()) throw_system_error(path + " cannot be removed", errno);
  const struct stat status = status_of(parent, path);
  if (status.st_dev == expected.st_dev && status.st_ino == expected.st_ino) return parent;
  throw Error(ErrorDetails{.problem = path + " cannot be removed",
                           .expected = "a folder that stays where it is",
                           .got = "one that was moved meanwhile"});
}

// Others may change the tree meanwhile, and a path that was looked at may lead to the files of
// somebody else a moment later. So every folder is entered from the one above, links are not
// followed, and what is removed is an entry of an open folder. Few are open at a time, however deep
// the tree is: `parent` is closed, and opened anew on the way back.
void remove_entry(Fd& parent, const std::string& name, const std::string& path) {
  failpoint("files.remove_entry");
  // Deeper trees than paths can name could exhaust the stack.
  if (path.size() >= PATH_MAX) throw_system_error(path + " cannot be accessed", ENAMETOOLONG);
  Fd folder = open_folder_in(parent, name, path);
  const bool is_entered = folder.is_open();
  const auto names = is_entered ? names_in(folder, path) : std::vector<std::string>();
  if (!names.empty()) {
    const struct stat status = status_of(parent, path);
    parent.reset();
    for (const std::string& inner : names) remove_entry(folder, inner, join_path(path, inner));
    parent = open_parent(folder, status, path);
  }
  if (::unlinkat(parent.get(), name.c_str(), is_entered ? AT_REMOVEDIR : 0) != 0 &&
      errno != ENOENT) {
    throw_system_error(path + " cannot be removed", errno);
  }
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
  const FolderStream stream(::opendir(folder.c_str()), &::closedir);
  if (!stream) refuse_to_read_folder(folder, errno);
  return names_in(stream.get(), folder);
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
  Fd parent(::open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!parent.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return;
    throw_system_error(path + " cannot be accessed", errno);
  }
  remove_entry(parent, name_of(path), path);
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
