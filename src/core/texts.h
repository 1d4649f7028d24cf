// How messages name things, and how users' words are parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant {

// "rank 3", "ranks 0 and 2", "ranks 0 to 3, 5 and 6". The ranks must be sorted; at least one.
std::string ranks_text(const std::vector<int64_t>& ranks);

// "a, b, c"; with more than `most`, "a, b and 3 more".
std::string list_text(const std::vector<std::string>& texts, std::size_t most = SIZE_MAX);

// "1 file", "2 files", "0 files": a count and its noun, which takes an "s" in the plural.
std::string counted(std::uint64_t count, const std::string& noun);

// "[2, 3]"; a scalar is "[]".
std::string shape_text(const std::vector<int64_t>& shape);

// "SIGSEGV"; "signal 42" for a signal without a name.
std::string signal_name(int signal);

// Converts the letters A to Z only.
std::string lower_case(std::string_view text);

// Parses yes, true, on, 1 and so on, or no, false, off, 0, in any case; empty for other words.
std::optional<bool> parse_flag(std::string_view text);

}  // namespace accelerant
