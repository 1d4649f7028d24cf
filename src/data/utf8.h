// Characters of a text that must be UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerant::data {

// The character of `text` at `position`, which is moved past it. Throws Error with the byte offset
// for anything that is no valid UTF-8.
char32_t next_code_point(std::string_view text, std::size_t& position);

// "U+00E9", for messages.
std::string code_point_name(char32_t code_point);

}  // namespace accelerant::data
