// Checks of strings. Python's torch reads strings as UTF-8 with "surrogatepass": lone surrogates, which
// strict UTF-8 forbids, are allowed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accelerant::format {

bool is_python_utf8(std::string_view text);

// The bytes whose values are the code points of `text`, as str.encode("latin1") gives them; nothing if
// one is above 255. The other way round for from_latin1.
std::optional<std::string> to_latin1(std::string_view text);
std::string from_latin1(std::string_view bytes);

}  // namespace accelerant::format
