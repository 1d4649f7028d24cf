#include "launch/report.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "core/launch_contract.h"
#include "core/stack_frames.h"
#include "core/texts.h"

namespace accelerant::launch {
namespace {

double time_of(const RankResult& rank) {
  return rank.error ? std::min(rank.error->time, rank.end_time) : rank.end_time;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string_view trimmed(std::string_view line) {
  const size_t start = line.find_first_not_of(" \t\r");
  if (start == std::string_view::npos) return {};
  return line.substr(start, line.find_last_not_of(" \t\r") - start + 1);
}

// The first line of an error often has something in front: "[rank 1] terminated: ", "  what():  ".
bool ends_with_words(std::string_view line, std::string_view words) {
  if (words.empty() || !line.ends_with(words)) return false;
  return line.size() == words.size() || line[line.size() - words.size() - 1] == ' ';
}

// How many lines from `at` on belong to the error. If the error is longer than what is left of the
// standard error, its beginning is missing there; a single last line may be somebody else's ("}").
size_t error_lines_at(const std::vector<std::string_view>& lines, size_t at,
                      const std::vector<std::string_view>& error) {
  for (size_t missing = 0; missing < (at == 0 ? error.size() : 1); ++missing) {
    const size_t count = error.size() - missing;
    if (at + count > lines.size() || (missing > 0 && count < 2)) continue;
    size_t same = 0;
    while (same < count) {
      const std::string_view line = trimmed(lines[at + same]);
      const std::string_view expected = trimmed(error[missing + same]);
      const bool is_first = missing + same == 0;
      if (is_first ? !ends_with_words(line, expected) : line != expected) break;
      ++same;
    }
    if (same == count) return count;
  }
  return 0;
}

}  // namespace

std::optional<size_t> root_cause(const std::vector<RankResult>& ranks) {
  // Ranks that only lost another one come last. Before them comes one that ended with a code of its
  // own while it was already being stopped: it is probably the one that was lost.
  const auto group_of = [](const RankResult& rank) {
    const bool is_consequence = rank.error && rank.error->is_consequence;
    if (rank.failed() && !is_consequence) return 0;
    const bool ended_by_itself =
        rank.stopped && rank.signal == 0 && rank.exit_code != 0 && !rank.preempted();
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
  // If nobody failed there is no cause: ranks that were stopped may well end with a code.
  return std::ranges::any_of(ranks, &RankResult::failed) ? cause : std::nullopt;
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

std::string describe_early_ends(const std::vector<RankResult>& ranks) {
  std::vector<int64_t> ended;
  for (const RankResult& rank : ranks) {
    if (rank.exit_code == 0 && !rank.stopped) ended.push_back(rank.rank);
  }
  return ended.empty() ? "" : ranks_text(ended) + " had ended with exit code 0 before";
}

bool were_preempted(const std::vector<RankResult>& ranks) {
  return std::ranges::any_of(ranks, &RankResult::preempted) &&
         std::ranges::all_of(
             ranks, [](const RankResult& rank) { return rank.preempted() || rank.exit_code == 0; });
}

std::string describe_preempted(const std::vector<RankResult>& ranks) {
  std::vector<int64_t> saved;
  for (const RankResult& rank : ranks) {
    if (rank.preempted()) saved.push_back(rank.rank);
  }
  if (saved.empty()) return "";
  return (saved.size() == ranks.size() ? "all ranks" : ranks_text(saved)) + " saved " +
         (saved.size() == 1 && ranks.size() > 1 ? "its" : "their") + " state (exit code " +
         std::to_string(kPreemptedExitCode) + ")";
}

std::string describe_still_running(const std::vector<int64_t>& ended,
                                   const std::vector<int64_t>& running,
                                   std::chrono::duration<double> since_first) {
  return ranks_text(ended) + " ended (exit code 0)" + (ended.size() == 1 ? " " : ", the first ") +
         seconds_text(since_first) + " ago; " + ranks_text(running) +
         (running.size() == 1 ? " is" : " are") + " still running";
}

std::string describe_reason(const RankResult& rank) {
  const auto says_something = [](std::string_view line) { return !trimmed(line).empty(); };
  const std::string error = describe_error(rank);
  const auto error_lines = lines_of(error);
  const auto first = std::find_if(error_lines.begin(), error_lines.end(), says_something);
  if (first != error_lines.end()) return "its error: " + std::string(trimmed(*first));
  const auto lines = lines_of(rank.err);
  const auto said = std::find_if(lines.rbegin(), lines.rend(), says_something);
  return said == lines.rend() ? "" : "its last line: " + std::string(trimmed(*said));
}

std::string describe_error(const RankResult& rank) {
  if (!rank.error) return "";
  const std::string step =
      rank.error->step ? "in step " + std::to_string(*rank.error->step) + ": " : "";
  return step + without_stack_frames(rank.error->message);
}

std::string rest_of_error(const RankResult& rank) {
  std::string_view rest = "";
  const std::string error = describe_error(rank);
  if (const size_t end = error.find('\n', error.find_first_not_of(" \t\r\n"));
      end != std::string::npos) {
    rest = std::string_view(error).substr(end + 1);
  }
  return std::string(rest);
}

std::string describe_advice(const RankResult& rank) {
  if (rank.error) return "";
  switch (rank.signal) {
    case SIGKILL:
      return "the system kills a process with SIGKILL when memory runs out: check dmesg, then use "
             "a smaller batch or fewer processes";
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
      return "the program crashed: run it in a debugger to see where, for example "
             "gdb -ex run -ex bt --args PROGRAM";
    default:
      return "";
  }
}

std::string without_error(std::string_view text, const RankResult& rank) {
  if (!rank.error) return std::string(text);
  const std::string message = without_stack_frames(rank.error->message);
  const auto error = lines_of(message);
  const auto lines = lines_of(text);
  const std::string first_alone =
      error.empty() ? "" : std::string(trimmed(error.front())) + kRestIsReported;
  std::string result;
  for (size_t i = 0; i < lines.size();) {
    if (const size_t count = error_lines_at(lines, i, error); count > 0) {
      i += count;
    } else if (ends_with_words(trimmed(lines[i]), first_alone)) {
      ++i;
    } else {
      result.append(lines[i++]).push_back('\n');
    }
  }
  return result;
}

std::string seconds_text(std::chrono::duration<double> time) {
  std::string text = std::to_string(time.count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + " s";
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
