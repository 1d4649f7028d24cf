#include "line_difference.h"

#include <algorithm>
#include <vector>

#include "loop_sources.h"

namespace demo {
namespace {

std::vector<std::string_view> lines_of_code(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (!line.empty() && !line.starts_with("//")) lines.push_back(line);
  }
  return lines;
}

// The length of the longest common subsequence: the lines that a diff would leave alone.
int count_common(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  std::vector<int> above(b.size() + 1, 0);  // for the lines of `a` before this one
  for (const std::string_view line : a) {
    std::vector<int> row = above;
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = line == b[j] ? above[j] + 1 : std::max(row[j], above[j + 1]);
    }
    above = std::move(row);
  }
  return above.back();
}

}  // namespace

LineDifference count_line_difference(std::string_view before, std::string_view after) {
  const auto a = lines_of_code(before);
  const auto b = lines_of_code(after);
  const int common = count_common(a, b);
  return {.lines = static_cast<int>(a.size()),
          .removed = static_cast<int>(a.size()) - common,
          .added = static_cast<int>(b.size()) - common};
}

LineDifference difference_between_loops() {
  return count_line_difference(plain_loop_source, accelerant_loop_source);
}

}  // namespace demo
