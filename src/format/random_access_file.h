// A file that is read at arbitrary positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/regular_file.h"

namespace accelerant::format {

class RandomAccessFile {
 public:
  // Throws Error if the path is not a regular file (it may be a link to one) or cannot be read.
  // Never waits, as opening a pipe would.
  explicit RandomAccessFile(const std::string& path);

  // The same open file, with a descriptor of its own; it is not mapped.
  explicit RandomAccessFile(const RandomAccessFile& other);

  ~RandomAccessFile();
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::string& path() const { return path_; }

  // The size when the file was opened.
  std::uint64_t size() const { return file_.size; }

  // Fills `target` from `position` on. Throws Error if the file ends before that.
  void read(std::uint64_t position, std::span<std::byte> target) const;

  // Maps the file, once. The bytes stay valid as long as this object lives.
  std::span<const std::byte> map();

 private:
  [[noreturn]] void fail_shrunk(std::uint64_t size) const;
  void read_plainly(std::uint64_t position, std::span<std::byte> target) const;

  std::string path_;
  RegularFile file_;
  void* mapping_ = nullptr;
};

}  // namespace accelerant::format
