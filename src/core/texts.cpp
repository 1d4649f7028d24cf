#include "core/texts.h"

#include <string.h>

#include <algorithm>

namespace accelerant {

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i >= 2) {
      parts.push_back(std::to_string(ranks[i]) + " to " + std::to_string(ranks[last]));
      i = last + 1;
    } else {
      parts.push_back(std::to_string(ranks[i++]));
    }
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

std::string list_text(const std::vector<std::string>& texts, std::size_t most) {
  std::string list;
  for (std::size_t i = 0; i < std::min(texts.size(), most); ++i) {
    list += (i == 0 ? "" : ", ") + texts[i];
  }
  if (texts.size() > most) list += " and " + std::to_string(texts.size() - most) + " more";
  return list;
}

std::string counted(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + list_text(sizes) + "]";
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : "SIG" + std::string(name);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::optional<bool> parse_flag(std::string_view text) {
  const std::string word = lower_case(text);
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

}  // namespace accelerant
