// How deep plain data may be nested. Python's own pickler gives up earlier, at about 500; a bound is
// needed because values are walked by recursion.
#pragma once

#include <string>

namespace accelerant::format {

inline constexpr int deepest_nesting = 1000;

// Throws the Error for data that are deeper.
[[noreturn]] void refuse_nesting(const std::string& where);

}  // namespace accelerant::format
