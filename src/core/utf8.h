// UTF-8 and Latin-1. Callers handle invalid input.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace accelerant {

// One past the largest code point.
constexpr char32_t code_point_limit = 0x110000;

// Whether lone surrogates (U+D800 to U+DFFF) are valid. UTF-8 forbids them; Python's torch reads
// and writes strings with "surrogatepass".
enum class Surrogates { invalid, valid };

// Decodes the character of `text` at `position` and moves `position` past it. For invalid UTF-8,
// returns nothing and leaves the position: stray or missing continuation bytes, overlong forms,
// surrogates, and code points above U+10FFFF.
std::optional<char32_t> decode_utf8(std::string_view text, std::size_t& position,
                                    Surrogates surrogates = Surrogates::invalid);

// The position of the first invalid UTF-8; empty if all of `text` is valid.
std::optional<std::size_t> find_invalid_utf8(std::string_view text,
                                             Surrogates surrogates = Surrogates::invalid);

void append_utf8(std::string& text, char32_t code_point);

// The bytes whose values are the code points of `text`, like str.encode("latin1"); empty if one is
// above 255. utf8_of_latin1 is the inverse.
std::optional<std::string> latin1_of_utf8(std::string_view text);
std::string utf8_of_latin1(std::string_view bytes);

}  // namespace accelerant
