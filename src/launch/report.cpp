#include "launch/report.h"

#include <string.h>

#include <algorithm>
#include <utility>

namespace accelerant::launch {
namespace {

double time_of(const RankResult& rank) {
  return rank.error ? std::min(rank.error->time, rank.end_time) : rank.end_time;
}

}  // namespace

std::optional<size_t> root_cause(const std::vector<RankResult>& ranks) {
  // Those that only lost another rank come last; before them one that ended with a code of its own when it
  // was already being stopped: it is likely to be the one that was lost.
  const auto group_of = [](const RankResult& rank) {
    const bool is_consequence = rank.error && rank.error->is_consequence;
    if (rank.failed() && !is_consequence) return 0;
    const bool ended_by_itself = rank.stopped && rank.signal == 0 && rank.exit_code != 0;
    if (ended_by_itself && !is_consequence) return 1;
    return rank.failed() ? 2 : 3;
  };
  std::optional<size_t> cause;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int group = group_of(ranks[i]);
    if (group == 3) continue;
    const auto key = std::pair(group, time_of(ranks[i]));
    if (!cause || key < std::pair(group_of(ranks[*cause]), time_of(ranks[*cause]))) cause = i;
  }
  // Nobody failed: ranks that were stopped may well end with a code.
  return std::ranges::any_of(ranks, &RankResult::failed) ? cause : std::nullopt;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : "SIG" + std::string(name);
}

std::string describe_end(const RankResult& rank) {
  const std::string code = "exit code " + std::to_string(rank.exit_code);
  return rank.signal == 0 ? code : signal_name(rank.signal) + " (" + code + ")";
}

std::string describe_failure(const std::vector<RankResult>& ranks, size_t cause,
                             int64_t world_size) {
  std::string text = "rank " + std::to_string(ranks[cause].rank) + " of " +
                     std::to_string(world_size) + " failed: " + describe_end(ranks[cause]);
  const auto others = [&](auto predicate) {
    return std::ranges::count_if(ranks, predicate) - (predicate(ranks[cause]) ? 1 : 0);
  };
  const auto failed = others([](const RankResult& rank) { return rank.failed(); });
  const auto stopped = others([](const RankResult& rank) { return rank.stopped; });
  const auto ranks_were = [](auto count) {
    return std::to_string(count) + (count == 1 ? " other rank" : " other ranks");
  };
  if (failed > 0) text += "; " + ranks_were(failed) + " failed after it";
  if (stopped > 0) {
    text += "; " + ranks_were(stopped) + (stopped == 1 ? " was stopped" : " were stopped");
  }
  return text;
}

std::string describe_error(const RankResult& rank) {
  if (!rank.error) return "";
  const std::string step =
      rank.error->step ? "in step " + std::to_string(*rank.error->step) + ": " : "";
  return step + rank.error->message;
}

std::string last_lines(std::string_view text, size_t count) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  size_t start = text.size();
  for (size_t line = 0; line < count && start != std::string_view::npos; ++line) {
    start = start == 0 ? std::string_view::npos : text.rfind('\n', start - 1);
  }
  return std::string(start == std::string_view::npos ? text : text.substr(start + 1));
}

std::string indented(std::string_view text, std::string_view prefix) {
  std::string result;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    result.append(prefix).append(text.substr(0, end)).push_back('\n');
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace accelerant::launch
