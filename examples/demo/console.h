// Text for a screen of 80 columns.
#pragma once

#include <cstdint>
#include <string>

namespace demo {

// Prints a text of any length behind a prefix, broken between words. Later lines begin below the
// text, not below the prefix.
void print_wrapped(const std::string& prefix, const std::string& text);

// A line that stands out on a terminal.
void print_title(const std::string& text);

// 12345 as "12,345".
std::string with_thousands(int64_t value);

}  // namespace demo
