// A file that is read at any place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accelerant::format {

class RandomAccessFile {
 public:
  // Throws Error if the path is no file or cannot be read.
  explicit RandomAccessFile(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // When it was opened.
  std::uint64_t size() const { return size_; }

  // Fills `target` from `position` on. A file that ends before is an Error. Should it become
  // shorter in the very moment in which it is read, the process may end.
  void read(std::uint64_t position, std::span<std::byte> target) const;

  // Maps the file, once. The bytes live as long as this object.
  std::span<const std::byte> map();

 private:
  // False if it is not possible, for whatever reason; pread works or says why not.
  bool copy_mapped(std::uint64_t position, std::span<std::byte> target) const;
  void read_plainly(std::uint64_t position, std::span<std::byte> target) const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  void* mapping_ = nullptr;
};

}  // namespace accelerant::format
