#include "core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "accelerant/core/error.h"
#include "core/files.h"

namespace accelerant::format {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> number = 0;
  do {  // a killed process with the same id may have left a file of this name
    temporary_path_ = path_ + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
    descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw_system_error(temporary_path_ + " cannot be created", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (process_.is_this_one()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) throw Error(path_ + ": the file is already committed");
  write_all(descriptor_, bytes, path_);
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw Error(path_ + ": the file is already committed");
  if (!sync_fd(descriptor_)) throw_system_error(path_ + " cannot be synced", errno);
  rename_path(temporary_path_, path_);
  ::close(std::exchange(descriptor_, -1));
  sync_folder(folder_of(path_));
}

}  // namespace accelerant::format
