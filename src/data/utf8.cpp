#include "data/utf8.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "accelerant/core/error.h"
#include "core/utf8.h"

namespace accelerant::data {

char32_t next_code_point(std::string_view text, std::size_t& position) {
  if (const auto code_point = decode_utf8(text, position)) return *code_point;
  std::array<char, 8> byte{};
  std::snprintf(byte.data(), byte.size(), "0x%02X", static_cast<uint8_t>(text[position]));
  throw Error(
      ErrorDetails{.problem = "the text is no valid UTF-8 at byte " + std::to_string(position),
                   .expected = {},
                   .got = byte.data(),
                   .hint = "convert the text, or take Vocabulary::bytes()"});
}

std::string code_point_name(char32_t code_point) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "U+%04X", static_cast<unsigned>(code_point));
  return name.data();
}

}  // namespace accelerant::data
