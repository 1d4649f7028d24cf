// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerant::data {

// One past the largest code point.
constexpr char32_t code_point_limit = 0x110000;

// The character of `text` at `position`, which is moved past it. Throws Error with the byte offset
// for anything that is no valid UTF-8: stray or missing continuation bytes, forms that are longer
// than needed, surrogates, and code points past U+10FFFF.
char32_t next_code_point(std::string_view text, std::size_t& position);

void append_utf8(std::string& text, char32_t code_point);

// "U+00E9", for messages.
std::string code_point_name(char32_t code_point);

}  // namespace accelerant::data
