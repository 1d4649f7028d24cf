#include "data/utf8.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

[[noreturn]] void refuse(std::string_view text, std::size_t position) {
  std::array<char, 8> byte{};
  std::snprintf(byte.data(), byte.size(), "0x%02X", static_cast<uint8_t>(text[position]));
  throw Error(
      ErrorDetails{.problem = "the text is no valid UTF-8 at byte " + std::to_string(position),
                   .expected = {},
                   .got = byte.data(),
                   .hint = "convert the text, or take Vocabulary::bytes()"});
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto first = static_cast<uint8_t>(text[position]);
  if (first < 0x80) {
    ++position;
    return first;
  }
  // The number of bytes, the bits the first one carries, and the smallest value that needs so many.
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
    refuse(text, position);
  }
  if (text.size() - position < length) refuse(text, position);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[position + i]);
    if ((next & 0xC0U) != 0x80) refuse(text, position);
    value = value << 6 | (next & 0x3FU);
  }
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (value < smallest || surrogate || value >= code_point_limit) refuse(text, position);
  position += length;
  return value;
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

std::string code_point_name(char32_t code_point) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "U+%04X", static_cast<unsigned>(code_point));
  return name.data();
}

}  // namespace accelerant::data
