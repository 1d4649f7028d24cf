// What a checkpoint records about one of its files.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::checkpoint {

struct FileRecord {
  std::uint64_t size = 0;  // bytes
  std::uint64_t xxh3 = 0;  // 64-bit XXH3 of all bytes

  bool operator==(const FileRecord&) const = default;
};

// The record of an existing file; reads all of it.
FileRecord record_of(const std::string& path);

}  // namespace accelerant::checkpoint
