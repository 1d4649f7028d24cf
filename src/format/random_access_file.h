// A file that is read at arbitrary positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accelerant::format {

class RandomAccessFile {
 public:
  // Throws Error if the path is not a file or cannot be read.
  explicit RandomAccessFile(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // The size when the file was opened.
  std::uint64_t size() const { return size_; }

  // Fills `target` from `position` on. Throws Error if the file ends before that. If the file
  // shrinks at the very moment it is read, the process may end.
  void read(std::uint64_t position, std::span<std::byte> target) const;

  // Maps the file, once. The bytes stay valid as long as this object lives.
  std::span<const std::byte> map();

 private:
  // Returns false if it fails for any reason; pread then works or reports why not.
  bool copy_mapped(std::uint64_t position, std::span<std::byte> target) const;
  void read_plainly(std::uint64_t position, std::span<std::byte> target) const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  void* mapping_ = nullptr;
};

}  // namespace accelerant::format
