// A file mapped into memory, for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace accelerant::format {

class ArchiveFile {
 public:
  // An Error if it is no regular file or cannot be read.
  explicit ArchiveFile(const std::string& path);
  ~ArchiveFile();
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace accelerant::format
