// What to say about a group of ranks that failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/debug_launcher.h"

namespace accelerant::launch {

// The index of the rank whose failure came first, by its own error report or else by its death: the
// cause of the others. None if no rank failed.
std::optional<size_t> root_cause(const std::vector<RankResult>& ranks);

// "exit code 3", "SIGSEGV (exit code 139)".
std::string describe_end(const RankResult& rank);

// "rank 1 of 4 failed: exit code 3; 3 other ranks were stopped".
std::string describe_failure(const std::vector<RankResult>& ranks, size_t cause,
                             int64_t world_size);

// "ranks 1 and 3 had ended with exit code 0 before": those that had finished when others failed or
// were stopped. Empty if there are none.
std::string describe_early_ends(const std::vector<RankResult>& ranks);

// Whether some ranks ended because they were asked to, and all others succeeded.
bool were_preempted(const std::vector<RankResult>& ranks);

// "all ranks saved their state (exit code 75)", "rank 1 saved its state (exit code 75)". Empty if
// none did.
std::string describe_preempted(const std::vector<RankResult>& ranks);

// "rank 1 ended (exit code 0) 10 s ago; ranks 0 and 2 are still running".
std::string describe_still_running(const std::vector<int64_t>& ended,
                                   const std::vector<int64_t>& running,
                                   std::chrono::duration<double> since_first);

// Why a rank failed, in one line: the first of its error report or else the last of its standard
// error. Empty if it has neither.
std::string describe_reason(const RankResult& rank);

// The message of the rank's error report with its step, without libtorch's stack frames; empty if
// it wrote none.
std::string describe_error(const RankResult& rank);

// The same without the line that describe_reason shows.
std::string rest_of_error(const RankResult& rank);

// What to do about the end of a rank that could not say so itself: a signal ended it. Empty if
// there is nothing to say.
std::string describe_advice(const RankResult& rank);

// `text`, lines of the rank's standard error, without those that only repeat its error report.
std::string without_error(std::string_view text, const RankResult& rank);

// "2.5 s".
std::string seconds_text(std::chrono::duration<double> time);

// The last `count` lines of a text.
std::string last_lines(std::string_view text, size_t count);

// Each line of the text behind `prefix`, ended by a newline.
std::string indented(std::string_view text, std::string_view prefix);

}  // namespace accelerant::launch
