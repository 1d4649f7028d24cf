// What to say of a group that failed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/rank_result.h"

namespace accelerant::launch {

// The index of the rank whose failure came first, by its own error report or else by its death: the
// cause of the others. None if no rank failed.
std::optional<size_t> root_cause(const std::vector<RankResult>& ranks);

// "exit code 3", "SIGSEGV (exit code 139)".
std::string describe_end(const RankResult& rank);

// "SIGSEGV".
std::string signal_name(int signal);

// "rank 1 of 4 failed: exit code 3; 3 other ranks were stopped".
std::string describe_failure(const std::vector<RankResult>& ranks, size_t cause,
                             int64_t world_size);

// The message of the rank's error report with its step, indented; empty if it wrote none.
std::string describe_error(const RankResult& rank);

// The last `count` lines of a text.
std::string last_lines(std::string_view text, size_t count);

// Each line of the text behind `prefix`, ended by a newline.
std::string indented(std::string_view text, std::string_view prefix);

}  // namespace accelerant::launch
