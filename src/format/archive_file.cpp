#include "format/archive_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerant/core/error.h"

namespace accelerant::format {

ArchiveFile::ArchiveFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw Error(path + " cannot be opened: " + std::strerror(errno));
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw Error(path + " cannot be read: it is not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > 0) {  // an empty file cannot be mapped
    void* const mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error = errno;
    if (mapping == MAP_FAILED) {
      close(descriptor);
      throw Error(path + " cannot be mapped: " + std::strerror(error));
    }
    bytes_ = {static_cast<const std::byte*>(mapping), size};
  }
  close(descriptor);
}

ArchiveFile::~ArchiveFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace accelerant::format
