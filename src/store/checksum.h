// 64-bit XXH3: detects damaged files at the speed of memory. It does not protect against deliberate
// tampering.
//
//   Checksum checksum;
//   checksum.add(bytes);
//   std::string text = to_hex(checksum.value());   // 16 digits
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::checkpoint {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept = default;
  Checksum& operator=(Checksum&&) noexcept = default;

  void add(std::span<const std::byte> bytes);

  // The checksum of all bytes so far.
  std::uint64_t value() const;

  // Forgets all bytes.
  void reset();

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};

// The checksums of consecutive blocks: they say where a file is damaged, and several threads can
// compare them.
class BlockChecksums {
 public:
  explicit BlockChecksums(std::uint64_t block_bytes) : block_bytes_(block_bytes) {}

  void add(std::span<const std::byte> bytes);

  // One for each block. The last block may be shorter. Nothing can be added afterwards.
  std::vector<std::uint64_t> finish();

 private:
  std::uint64_t block_bytes_;
  std::uint64_t filled_ = 0;  // bytes of the block that is not complete
  Checksum current_;
  std::vector<std::uint64_t> blocks_;
};

std::uint64_t checksum_of(std::string_view text);
std::uint64_t checksum_of(std::span<const std::byte> bytes);  // fastest for large blocks

// 16 digits, lower case; from_hex accepts nothing else.
std::string to_hex(std::uint64_t value);
std::optional<std::uint64_t> from_hex(std::string_view text);

}  // namespace accelerant::checkpoint
