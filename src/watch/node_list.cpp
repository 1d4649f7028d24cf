#include "watch/node_list.h"

#include <charconv>
#include <cstddef>

#include "accelerant/core/error.h"

namespace accelerant::dist {
namespace {

// More than any cluster has: a longer list is a mistake, and would fill the memory.
constexpr size_t most_entries = 1'000'000;

[[noreturn]] void refuse(std::string_view list, const std::string& why, const char* expected) {
  throw Error(ErrorDetails{.problem = "Cannot read a list from Slurm: " + why,
                           .expected = expected,
                           .got = "\"" + std::string(list) + "\""});
}

constexpr const char* node_list_example = "a form like \"node[001-004,7],gpu3\"";
constexpr const char* task_counts_example = "a form like \"2(x3),1\"";

// Digits only. False for an empty text or a number that is too large.
bool read_number(std::string_view text, int64_t& value) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Cuts at the commas outside brackets.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') ++depth;
    if (list[i] == ']') --depth;
    if (depth < 0 || depth > 1) refuse(list, "its brackets do not match", node_list_example);
    if (list[i] == ',' && depth == 0) {
      parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (depth != 0) refuse(list, "its brackets do not match", node_list_example);
  parts.push_back(list.substr(begin));
  return parts;
}

// What stands in one pair of brackets: "001-004,7".
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view list) {
  std::vector<std::string> numbers;
  for (const std::string_view range : split(ranges)) {
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    int64_t low = 0;
    int64_t high = 0;
    if (!read_number(first, low) || !read_number(last, high) || high < low)
      refuse(list, "it has the range \"" + std::string(range) + "\"", node_list_example);
    if (static_cast<size_t>(high - low) >= most_entries)
      refuse(list, "it is too long", node_list_example);
    for (int64_t number = low; number <= high; ++number) {
      std::string digits = std::to_string(number);
      // As wide as the first of the range: 008-010 keeps its zeros.
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
  }
  return numbers;
}

// One entry of the list: a name with any number of brackets.
std::vector<std::string> expand_name(std::string_view name, std::string_view list) {
  if (name.empty()) refuse(list, "it has an empty name", node_list_example);
  std::vector<std::string> names = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    for (std::string& made : names) made += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = name.find(']', open);
    const auto numbers = expand_ranges(name.substr(open + 1, close - open - 1), list);
    if (numbers.size() * names.size() > most_entries)
      refuse(list, "it is too long", node_list_example);
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& made : names)
      for (const std::string& number : numbers) longer.push_back(made + number);
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list) {
  std::vector<std::string> nodes;
  for (const std::string_view name : split(list)) {
    auto more = expand_name(name, list);
    if (nodes.size() + more.size() > most_entries)
      refuse(list, "it is too long", node_list_example);
    nodes.insert(nodes.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }
  return nodes;
}

std::vector<int64_t> expand_task_counts(std::string_view list) {
  std::vector<int64_t> counts;
  for (const std::string_view entry : split(list)) {
    const size_t open = entry.find("(x");
    int64_t tasks = 0;
    int64_t nodes = 1;
    bool good = read_number(entry.substr(0, open), tasks);
    if (good && open != std::string_view::npos)
      good = entry.back() == ')' &&
             read_number(entry.substr(open + 2, entry.size() - open - 3), nodes);
    if (!good || static_cast<size_t>(nodes) > most_entries - counts.size())
      refuse(list, "it has \"" + std::string(entry) + "\"", task_counts_example);
    counts.insert(counts.end(), static_cast<size_t>(nodes), tasks);
  }
  return counts;
}

}  // namespace accelerant::dist
