// How messages name things, and what words of users mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant {

// "rank 3", "ranks 0 and 2", "ranks 0 to 3, 5 and 6". The ranks are sorted, and there is at least
// one.
std::string ranks_text(const std::vector<int64_t>& ranks);

// "a, b, c"; with more than `most`, "a, b and 3 more".
std::string list_text(const std::vector<std::string>& texts, std::size_t most = SIZE_MAX);

// "[2, 3]"; a scalar is "[]".
std::string shape_text(const std::vector<int64_t>& shape);

// "SIGSEGV"; "signal 42" for one without a name.
std::string signal_name(int signal);

// Of the letters A to Z.
std::string lower_case(std::string_view text);

// yes, true, on, 1 and the like, or no, false, off, 0, in any case; nothing for other words.
std::optional<bool> parse_flag(std::string_view text);

}  // namespace accelerant
