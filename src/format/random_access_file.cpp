#include "format/random_access_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerant/core/error.h"

namespace accelerant::format {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int code) {
  throw Error(path + ": " + what + ": " + std::strerror(code));
}

}  // namespace

RandomAccessFile::RandomAccessFile(const std::string& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path, "the file cannot be opened", errno);
  struct stat status {};
  const bool is_known = ::fstat(descriptor_, &status) == 0;
  const int code = errno;
  if (!is_known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    if (!is_known) fail(path, "the file cannot be examined", code);
    throw Error(ErrorDetails{.problem = path + ": this is no file",
                             .expected = "a regular file",
                             .got = S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe",
                             .hint = {}});
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

RandomAccessFile::~RandomAccessFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
  ::close(descriptor_);
}

void RandomAccessFile::read(std::uint64_t position, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t got =
        ::pread(descriptor_, target.data(), target.size(), static_cast<off_t>(position));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(path_, "the file cannot be read", errno);
    }
    if (got == 0) {
      throw Error(
          ErrorDetails{.problem = path_ + ": the file has become shorter since it was opened",
                       .expected = std::to_string(size_) + " bytes",
                       .got = std::to_string(position),
                       .hint = "replace files by renaming, not by writing over them"});
    }
    target = target.subspan(static_cast<std::size_t>(got));
    position += static_cast<std::uint64_t>(got);
  }
}

std::span<const std::byte> RandomAccessFile::map() {
  void* const mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (mapping == MAP_FAILED) fail(path_, "the file cannot be mapped", errno);
  mapping_ = mapping;
  return {static_cast<const std::byte*>(mapping), size_};
}

}  // namespace accelerant::format
