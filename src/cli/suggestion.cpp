#include "cli/suggestion.h"

#include <algorithm>

namespace accelerant::cli {
namespace {

constexpr size_t kShortestBeginning = 3;  // "--num" is a beginning, "--n" may be anything

// How many edits lead from one to the other: adding, removing or replacing a letter, or swapping
// two neighbours.
size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> table(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
        continue;
      }
      const size_t replaced = table[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      table[i][j] = std::min({replaced, table[i - 1][j] + 1, table[i][j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
      }
    }
  }
  return table[from.size()][to.size()];
}

bool is_near(std::string_view written, std::string_view name, size_t letters) {
  if (written.size() >= kShortestBeginning && name.starts_with(written)) return true;
  return letters <= std::max(written.size(), name.size()) / 3;
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view written,
                                        const std::vector<std::string>& names) {
  std::optional<std::string> nearest;
  size_t least = 0;
  for (const std::string& name : names) {
    const size_t letters = distance(written, name);
    if (!is_near(written, name, letters) || (nearest && letters >= least)) continue;
    nearest = name;
    least = letters;
  }
  return nearest;
}

}  // namespace accelerant::cli
