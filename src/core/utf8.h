// UTF-8 and Latin-1. Callers handle invalid input.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace accelerant {

// One past the largest code point.
constexpr char32_t code_point_limit = 0x110000;

// Whether U+D800 to U+DFFF may stand alone. UTF-8 forbids them; Python's torch reads and writes
// strings with "surrogatepass".
enum class Surrogates { invalid, valid };

// The character of `text` at `position`, which is moved past it. Empty, and the position stays, for
// anything that is no valid UTF-8: stray or missing continuation bytes, forms that are longer than
// needed, surrogates, and code points past U+10FFFF.
std::optional<char32_t> decode_utf8(std::string_view text, std::size_t& position,
                                    Surrogates surrogates = Surrogates::invalid);

// Where `text` stops being valid UTF-8; empty if all of it is.
std::optional<std::size_t> find_invalid_utf8(std::string_view text,
                                             Surrogates surrogates = Surrogates::invalid);

void append_utf8(std::string& text, char32_t code_point);

// The bytes whose values are the code points of `text`, as str.encode("latin1") gives them; empty
// if one is above 255. The other way round for utf8_of_latin1.
std::optional<std::string> latin1_of_utf8(std::string_view text);
std::string utf8_of_latin1(std::string_view bytes);

}  // namespace accelerant
