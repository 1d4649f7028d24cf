#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace accelerant {

std::optional<char32_t> decode_utf8(std::string_view text, std::size_t& position,
                                    Surrogates surrogates) {
  const auto first = static_cast<std::uint8_t>(text[position]);
  if (first < 0x80) {
    ++position;
    return first;
  }
  // The number of bytes, the bits in the first one, and the smallest value that needs that many.
  std::size_t length = 0;
  char32_t value = 0;
  char32_t smallest = 0;
  if ((first & 0xE0U) == 0xC0) {
    length = 2, value = first & 0x1FU, smallest = 0x80;
  } else if ((first & 0xF0U) == 0xE0) {
    length = 3, value = first & 0x0FU, smallest = 0x800;
  } else if ((first & 0xF8U) == 0xF0) {
    length = 4, value = first & 0x07U, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() - position < length) return {};
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<std::uint8_t>(text[position + i]);
    if ((next & 0xC0U) != 0x80) return {};
    value = value << 6 | (next & 0x3FU);
  }
  if (value < smallest || value >= code_point_limit) return {};
  if (value >= 0xD800 && value < 0xE000 && surrogates == Surrogates::invalid) return {};
  position += length;
  return value;
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text, Surrogates surrogates) {
  constexpr std::uint64_t high_bits = 0x8080808080808080U;
  std::size_t position = 0;
  while (position < text.size()) {
    // Most text is ASCII: skip eight characters at a time.
    std::uint64_t eight = 0;
    if (text.size() - position >= sizeof eight) {
      std::memcpy(&eight, text.data() + position, sizeof eight);
      if ((eight & high_bits) == 0) {
        position += sizeof eight;
        continue;
      }
    }
    if (!decode_utf8(text, position, surrogates)) return position;
  }
  return {};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto continuation = [&](unsigned shift) {
    text += static_cast<char>(0x80U | (code_point >> shift & 0x3FU));
  };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xC0U | code_point >> 6);
    continuation(0);
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0U | code_point >> 12);
    continuation(6);
    continuation(0);
  } else {
    text += static_cast<char>(0xF0U | code_point >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::optional<std::string> latin1_of_utf8(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const std::optional<char32_t> code_point = decode_utf8(text, position);
    if (!code_point || *code_point > 0xFF) return {};
    bytes += static_cast<char>(*code_point);
  }
  return bytes;
}

std::string utf8_of_latin1(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) append_utf8(text, static_cast<std::uint8_t>(c));
  return text;
}

}  // namespace accelerant
