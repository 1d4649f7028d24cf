#include "format/random_access_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "format/aligned_buffer.h"
#include "format/stream_copy.h"

namespace accelerant::format {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& operation, int code) {
  throw_system_error(path + ": " + operation, code);
}

// Small enough to stay in the cache between being read and being used.
constexpr std::size_t kBuffered = 256 << 10;
constexpr std::size_t kLeastBuffered = 1 << 20;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;  // of a cache

}  // namespace

RandomAccessFile::RandomAccessFile(const std::string& path)
    : path_(path), file_(open_regular_file(path, ": the file cannot be opened")) {}

RandomAccessFile::RandomAccessFile(const RandomAccessFile& other)
    : path_(other.path_),
      file_{.fd = Fd(::fcntl(other.file_.fd.get(), F_DUPFD_CLOEXEC, 0)), .size = other.size()} {
  if (!file_.fd.is_open()) fail(path_, "the file cannot be opened once more", errno);
}

RandomAccessFile::~RandomAccessFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size());
}

void RandomAccessFile::read(std::uint64_t position, std::span<std::byte> target) const {
  const auto address = reinterpret_cast<std::uintptr_t>(target.data());
  if (target.size() < kLeastBuffered || address % kLine == position % kLine) {
    return read_plainly(position, target);
  }
  // The system's own copy is slower by half if file and target are aligned differently, which is
  // the usual case. One thread reading 400 MiB in the page cache on an AMD EPYC: 10 GB/s with this,
  // 8 GB/s without the buffer, 5 GB/s by mapping the file and populating the mapping, which takes
  // each page on its own.
  thread_local const AlignedBuffer buffer(kBuffered);
  while (!target.empty()) {
    const std::size_t size = std::min(target.size(), kBuffered - position % kBuffered);
    const auto piece = buffer.bytes().subspan(position % kBuffered % kPage, size);
    read_plainly(position, piece);
    stream_copy(target, piece);
    target = target.subspan(size);
    position += size;
  }
}

void RandomAccessFile::fail_shrunk(std::uint64_t size) const {
  throw Error(ErrorDetails{
      .problem = path_ + ": the file has shrunk since it was opened",
      .expected = std::to_string(file_.size) + " bytes",
      .got = std::to_string(size),
      .hint = "replace files by renaming a new one over them, not by overwriting them"});
}

void RandomAccessFile::read_plainly(std::uint64_t position, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t got =
        ::pread(file_.fd.get(), target.data(), target.size(), static_cast<off_t>(position));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(path_, "the file cannot be read", errno);
    }
    if (got == 0) fail_shrunk(position);
    target = target.subspan(static_cast<std::size_t>(got));
    position += static_cast<std::uint64_t>(got);
  }
}

std::span<const std::byte> RandomAccessFile::map() {
  if (size() == 0) return {};  // an empty file cannot be mapped
  void* const mapping = ::mmap(nullptr, size(), PROT_READ, MAP_PRIVATE, file_.fd.get(), 0);
  if (mapping == MAP_FAILED) fail(path_, "the file cannot be mapped", errno);
  mapping_ = mapping;
  return {static_cast<const std::byte*>(mapping), size()};
}

}  // namespace accelerant::format
