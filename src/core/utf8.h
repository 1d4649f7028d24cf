// UTF-8, without a say about what to do with text that is none.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace accelerant {

// One past the largest code point.
constexpr char32_t code_point_limit = 0x110000;

// The character of `text` at `position`, which is moved past it. Empty, and the position stays, for
// anything that is no valid UTF-8: stray or missing continuation bytes, forms that are longer than
// needed, surrogates, and code points past U+10FFFF.
std::optional<char32_t> decode_utf8(std::string_view text, std::size_t& position);

// Where `text` stops being valid UTF-8; empty if all of it is.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

}  // namespace accelerant
