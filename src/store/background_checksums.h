// The checksums of blocks, computed in a thread while the caller writes the same bytes to a file.
//
//   BackgroundChecksums sums(4 << 20);
//   sums.begin(bytes);   // borrows them
//   write(fd, bytes);
//   sums.end();          // has summed up all of them
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "store/checksum.h"

namespace accelerant::checkpoint {

class BackgroundChecksums {
 public:
  explicit BackgroundChecksums(std::uint64_t block_bytes) : sums_(block_bytes) {}

  // Waits for what has begun.
  ~BackgroundChecksums();

  // Starts to sum up the bytes, which must not change or go away before end(). Small ones, and all
  // if no thread can be started, are summed up at once. Call end() before the next begin().
  void begin(std::span<const std::byte> bytes);

  // Returns when all bytes are summed up; throws what went wrong.
  void end();

  // The checksums of all bytes; call it once, after end().
  std::vector<std::uint64_t> finish() { return sums_.finish(); }

 private:
  bool has_thread();
  void work();

  BlockChecksums sums_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const std::byte> task_ = {};  // not empty: to be summed up, or in progress
  std::exception_ptr error_;
  bool is_over_ = false;
  bool cannot_start_ = false;
  std::thread thread_;
};

}  // namespace accelerant::checkpoint
