#include "cli/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

namespace accelerant::cli {
namespace {

constexpr std::size_t kNarrowest = 40;
constexpr std::size_t kWidest = 100;
constexpr std::size_t kDefaultWidth = 80;
constexpr std::size_t kWidestNames = 36;  // longer names have a line of their own
constexpr std::size_t kLeastMeaning = 36;
constexpr std::size_t kIndentBelow = 6;

std::optional<std::size_t> columns_variable() {
  const char* value = std::getenv("COLUMNS");
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  std::size_t columns = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  if (error != std::errc() || stop != text.data() + text.size() || columns == 0) {
    return std::nullopt;
  }
  return columns;
}

std::optional<std::size_t> terminal_columns() {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

std::string wrapped_paragraph(const std::string& text, std::size_t width) {
  std::istringstream words(text);
  std::string result;
  std::size_t column = 0;
  for (std::string word; words >> word; column += word.size()) {
    if (column > 0 && column + 1 + word.size() > width) {
      result += '\n';
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
  }
  return result;
}

std::string indented(const std::string& text, std::size_t indent) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result.append(indent, ' ');
  }
  return result;
}

}  // namespace

std::size_t help_width() {
  auto columns = columns_variable();
  if (!columns) columns = terminal_columns();
  return std::clamp(columns.value_or(kDefaultWidth), kNarrowest, kWidest);
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find("\n\n", begin), text.size());
    if (begin > 0) result += "\n\n";
    result += wrapped_paragraph(text.substr(begin, end - begin), width);
    begin = end + 2;
  }
  return result;
}

std::string definition_list(const std::vector<std::pair<std::string, std::string>>& rows,
                            std::size_t width) {
  std::size_t longest = 0;
  for (const auto& [name, meaning] : rows) {
    if (name.size() + 4 <= kWidestNames) longest = std::max(longest, name.size());
  }
  std::size_t column = longest + 4;  // two spaces in front and two behind
  if (column + kLeastMeaning > width) column = kIndentBelow;
  std::string result;
  for (const auto& [name, meaning] : rows) {
    std::string line = "  " + name;
    if (line.size() + 2 > column) {
      result += line + "\n";
      line.clear();
    }
    line.append(column - line.size(), ' ');
    result += line + indented(wrapped(meaning, width - column), column) + "\n";
  }
  return result;
}

}  // namespace accelerant::cli
