#include "store/file_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>

#include "core/fd.h"
#include "core/files.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {

FileRecord record_of(const std::string& path) {
  constexpr std::size_t kPieceSize = 1 << 20;
  const Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) throw_system_error(path + " cannot be read", errno);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceSize);
  Checksum checksum;
  FileRecord record;
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.get(), kPieceSize);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(path + " cannot be read", errno);
    if (got == 0) break;
    checksum.add({buffer.get(), static_cast<std::size_t>(got)});
    record.size += static_cast<std::uint64_t>(got);
  }
  record.xxh3 = checksum.value();
  return record;
}

}  // namespace accelerant::checkpoint
