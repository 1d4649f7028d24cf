// Safetensors files as bytes, for tests.
#pragma once

#include <accelerant/format/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Eight bytes, least significant first.
inline std::string little_endian(std::uint64_t number) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &number, text.size());
  return text;
}

// A file with this header, unpadded, and this data or number of data bytes.
inline std::string file_with(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}
inline std::string file_with(const std::string& header, std::size_t data_size = 0) {
  std::string data(data_size, '\0');
  for (std::size_t i = 0; i < data_size; ++i) data[i] = static_cast<char>('a' + i % 26);
  return file_with(header, data);
}

// An entry of a header.
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

// The result borrows the bytes.
inline accelerant::format::SafetensorsFile parse(const std::string& bytes) {
  return accelerant::format::SafetensorsFile::parse(as_bytes(bytes));
}
