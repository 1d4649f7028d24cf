// Where a writer of files puts its bytes: a file, a checksum, memory.
#pragma once

#include <cstddef>
#include <span>

namespace accelerant::format {

class ByteSink {
 public:
  virtual ~ByteSink() = default;

  // Takes all bytes, in order, or throws.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

}  // namespace accelerant::format
