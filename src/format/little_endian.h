// Reads and writes the numbers of file formats byte by byte, so that neither alignment nor the
// machine's byte order matters; and views bytes as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace accelerant::format {

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
T read_little_endian(const std::byte* bytes) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  }
  return static_cast<T>(value);
}

template <class T>
void append_little_endian(std::string& target, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    target += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

}  // namespace accelerant::format
