#include "accelerant/format/byte_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "accelerant/core/error.h"

namespace accelerant::format {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int code = errno) {
  throw Error(path + ": " + what + ": " + std::strerror(code));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Without this a crash of the machine may undo the renaming.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, "the folder cannot be opened");
  const bool failed = ::fsync(descriptor) != 0;
  const int code = errno;
  ::close(descriptor);
  // Some file systems know no syncing of folders.
  if (failed && code != EINVAL && code != ENOTSUP)
    fail(folder, "the folder cannot be synced", code);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> number = 0;
  do {  // a name may be left from a process of the same id that was killed
    temporary_path_ = path_ + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
    descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail(temporary_path_, "the file cannot be made");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) throw Error(path_ + ": the file was committed before");
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0) {
      if (errno == EINTR) continue;
      fail(path_, "the file cannot be written");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw Error(path_ + ": the file was committed before");
  if (::fsync(descriptor_) != 0) fail(path_, "the file cannot be synced");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    fail(path_, "the file cannot be put in place");
  }
  ::close(std::exchange(descriptor_, -1));
  sync_folder(folder_of(path_));
}

}  // namespace accelerant::format
