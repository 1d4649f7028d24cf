#include "console.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace demo {
namespace {

constexpr std::size_t columns = 79;

bool is_bold_possible() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

}  // namespace

void print_wrapped(const std::string& prefix, const std::string& text) {
  std::string line = prefix;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool is_first = line.size() == prefix.size();
    if (!is_first && line.size() + 1 + word.size() > columns) {
      std::printf("%s\n", line.c_str());
      line = std::string(prefix.size(), ' ') + word;
    } else {
      line += (is_first ? "" : " ") + word;
    }
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void print_title(const std::string& text) {
  const bool bold = is_bold_possible();
  std::printf("%s%s%s\n", bold ? "\x1b[1m" : "", text.c_str(), bold ? "\x1b[0m" : "");
  std::fflush(stdout);  // before a progress bar, which goes to standard error
}

std::string with_thousands(int64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

}  // namespace demo
