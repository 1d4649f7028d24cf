#include "store/file_record.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>

#include "core/files.h"
#include "core/regular_file.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {

FileRecord record_of(const std::string& path) {
  constexpr std::size_t kPieceSize = 1 << 20;
  const RegularFile file = open_regular_file(path);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceSize);
  Checksum checksum;
  FileRecord record;
  while (true) {
    const ssize_t got = ::read(file.fd.get(), buffer.get(), kPieceSize);
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
