// The bytes of a file, read from start to end; a gzip file gives its unpacked bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace accelerant::data {

class ByteSource {
 public:
  // Opens the file. Whether it is gzip is told by its first two bytes, not by its name.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& path() const { return path_; }

  // Reads `size` bytes, fewer only where the data end. Throws Error when the file cannot be read
  // or its gzip data are damaged, cut off or followed by something else.
  std::size_t read(void* target, std::size_t size);

  // The most bytes the file can hold: for a plain file its size; a gzip file is at most 1032 times
  // smaller than its content. Nothing for what has no size, such as a pipe.
  std::optional<uint64_t> largest_content() const;

  // True where largest_content() is exact.
  bool is_plain() const { return unpacker_ == nullptr; }

  // Throws Error "<path>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Unpacker;

  void fill_buffer();
  std::size_t read_plain(char* target, std::size_t size);
  std::size_t read_unpacked(char* target, std::size_t size);
  bool begin_next_member();

  std::string path_;
  int descriptor_ = -1;
  std::optional<uint64_t> file_size_;
  std::unique_ptr<char[]> buffer_;
  std::size_t buffer_begin_ = 0;  // of the bytes read from the file and not yet given out
  std::size_t buffer_end_ = 0;
  bool at_end_of_file_ = false;
  std::unique_ptr<Unpacker> unpacker_;
};

// All bytes of a file.
std::string read_whole_file(const std::string& path);

}  // namespace accelerant::data
