#include "format/random_access_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "accelerant/core/error.h"
#include "format/stream_copy.h"

namespace accelerant::format {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& operation, int code) {
  throw Error(path + ": " + operation + ": " + std::strerror(code));
}

// At or above this size a mapping saves more than it costs; mapping more at a time saves nothing.
constexpr std::size_t kLeastMapped = 2 << 20;
constexpr std::size_t kMostMapped = 8 << 20;

// Small enough to stay in the cache between being read and being used.
constexpr std::size_t kBuffered = 256 << 10;

// A temporary mapping of a part of a file.
class MappedPart {
 public:
  MappedPart(int descriptor, std::uint64_t position, std::size_t size)
      : before_(position % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))),
        size_(before_ + size),
        begin_(::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor,
                      static_cast<off_t>(position - before_))) {}
  ~MappedPart() {
    if (begin_ != MAP_FAILED) ::munmap(begin_, size_);
  }
  MappedPart(const MappedPart&) = delete;
  MappedPart& operator=(const MappedPart&) = delete;

  // Loads all of it into memory. Touching bytes that are gone would end the process; this only
  // fails.
  bool is_present() const {
#ifdef MADV_POPULATE_READ
    return begin_ != MAP_FAILED && ::madvise(begin_, size_, MADV_POPULATE_READ) == 0;
#else
    return false;
#endif
  }

  const std::byte* bytes() const { return static_cast<const std::byte*>(begin_) + before_; }

 private:
  std::size_t before_;  // bytes before the part, back to a page boundary
  std::size_t size_;
  void* begin_;
};

}  // namespace

RandomAccessFile::RandomAccessFile(const std::string& path)
    : path_(path), file_(open_regular_file(path, ": the file cannot be opened")) {}

RandomAccessFile::~RandomAccessFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size());
}

void RandomAccessFile::read(std::uint64_t position, std::span<std::byte> target) const {
  // The kernel's own copy is slower by half if source and target are aligned differently, which is
  // the usual case.
  while (target.size() >= kLeastMapped) {
    const auto part = target.first(std::min(target.size(), kMostMapped));
    if (!copy_mapped(position, part)) break;
    target = target.subspan(part.size());
    position += part.size();
  }
  read_plainly(position, target);
}

bool RandomAccessFile::copy_mapped(std::uint64_t position, std::span<std::byte> target) const {
  const MappedPart part(file_.fd.get(), position, target.size());
  if (!part.is_present()) return false;
  stream_copy(target, {part.bytes(), target.size()});
  return reaches(position + target.size());
}

void RandomAccessFile::visit(std::uint64_t position, std::uint64_t size,
                             const std::function<void(std::span<const std::byte>)>& use) const {
  std::vector<std::byte> buffer;  // for parts that are small or cannot be mapped
  while (size > 0) {
    const auto mapped = static_cast<std::size_t>(std::min<std::uint64_t>(size, kMostMapped));
    std::size_t done = 0;
    if (mapped >= kLeastMapped) {
      const MappedPart part(file_.fd.get(), position, mapped);
      if (part.is_present()) {
        use({part.bytes(), mapped});
        if (!reaches(position + mapped)) fail_shrunk(position);
        done = mapped;
      }
    }
    if (done == 0) {
      if (buffer.empty()) buffer.resize(std::min(mapped, kBuffered));
      const auto piece = std::span(buffer).first(std::min(mapped, buffer.size()));
      read_plainly(position, piece);
      use(piece);
      done = piece.size();
    }
    position += done;
    size -= done;
  }
}

// Whether the file is still that long. The rest of the last page of a mapping reads as zeros.
bool RandomAccessFile::reaches(std::uint64_t end) const {
  struct stat status {};
  return ::fstat(file_.fd.get(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= end;
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
