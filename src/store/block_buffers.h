// Memory for blocks of files, reused: the system clears new memory, which takes longer than the
// checksum. The files of a model share it, so that as many blocks are in memory as threads read,
// however many files there are.
//
//   BlockBuffers::Buffer buffer = buffers.take({file, block}, bytes);
//   ...
//   buffers.give_back(std::move(buffer));
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "format/aligned_buffer.h"

namespace accelerant::checkpoint {

// Thread-safe.
class BlockBuffers {
 public:
  // A block of one of the files.
  struct Content {
    std::uint64_t file = 0;  // from new_file()
    std::size_t block = 0;

    bool operator==(const Content&) const = default;
  };

  struct Buffer {
    format::AlignedBuffer memory = {};
    std::optional<Content> content = {};  // what is in it, compared
  };

  // A number that no other file has.
  std::uint64_t new_file();

  // One of at least `size` bytes: the one that holds this block, or else any.
  Buffer take(const Content& wanted, std::size_t size);
  void give_back(Buffer buffer);

  // How many buffers wait to be taken.
  std::size_t spare() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t files_ = 0;
  std::vector<Buffer> spare_;
};

}  // namespace accelerant::checkpoint
