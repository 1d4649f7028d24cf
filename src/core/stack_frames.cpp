#include "core/stack_frames.h"

#include <algorithm>
#include <cstdlib>

namespace accelerant {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "<prefix>12", followed by anything.
bool is_numbered(std::string_view line, std::string_view prefix) {
  return line.starts_with(prefix) && line.size() > prefix.size() && is_digit(line[prefix.size()]);
}

}  // namespace

bool is_stack_frame(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (is_numbered(line, "frame #")) return true;
  if (line.starts_with("Exception raised from ") && line.find(" at ") != std::string_view::npos) {
    return true;
  }
  // libtorch that resolves symbols itself: "#4 c10::detail::torchCheckFail(...) from Exception.cpp".
  if (line.starts_with("C++ CapturedTraceback:")) return true;
  return is_numbered(line, "#") && line.find(" from ") != std::string_view::npos;
}

std::string without_stack_frames(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!is_stack_frame(line)) kept.append(line).push_back('\n');
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  kept.erase(kept.find_last_not_of(" \t\r\n") + 1);
  return kept;
}

bool wants_stack_frames() {
  const char* const wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

std::string error_text(std::string_view text) {
  return wants_stack_frames() ? std::string(text) : without_stack_frames(text);
}

}  // namespace accelerant
