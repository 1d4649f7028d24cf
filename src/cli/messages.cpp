#include "cli/messages.h"

#include <algorithm>
#include <cstdio>

#include "core/utf8.h"

namespace accelerant::cli {
namespace {

void show(const char* kind, const std::string& message) {
  std::fflush(stdout);
  // Line breaks belong to the message; other control characters come from files.
  std::string shown;
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    if (begin > 0) shown += '\n';
    shown += printable(std::string_view(message).substr(begin, end - begin));
    begin = end + 1;
  }
  std::fprintf(stderr, "accelerant: %s: %s\n", kind, shown.c_str());
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t begin = position;
    const auto code = decode_utf8(text, position);
    const bool is_control = code && (*code < 0x20 || (*code >= 0x7f && *code < 0xa0));
    if (code && !is_control) {
      shown += text.substr(begin, position - begin);
      continue;
    }
    if (!code) ++position;
    for (std::size_t i = begin; i < position; ++i) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(text[i]));
      shown += escape;
    }
  }
  return shown;
}

void show_error(const std::string& message) { show("error", message); }

void show_warning(const std::string& message) { show("warning", message); }

}  // namespace accelerant::cli
