// What a checkpoint says about a file of it.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::checkpoint {

struct FileRecord {
  std::uint64_t size = 0;  // bytes
  std::uint64_t xxh3 = 0;  // XXH3 with 64 bits over all bytes

  bool operator==(const FileRecord&) const = default;
};

// Of a file that is there: it is read as a whole.
FileRecord record_of(const std::string& path);

}  // namespace accelerant::checkpoint
