#include "cli/weights/text.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "core/files.h"
#include "core/utf8.h"

namespace accelerant::cli {
namespace {

constexpr std::uint64_t kMegabyte = 1'000'000;
constexpr std::uint64_t kWorthABar = 256 * kMegabyte;

std::size_t width_of(const std::string& text) {
  // Code points; good enough for names of tensors.
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB", "EB"}) {
    size /= 1000;
    unit = next;
    if (size < 999.95) break;  // what rounds to 1000.0 is one of the next
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", size, unit);
  return text;
}

std::string count_text(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, ",");
  return text;
}

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

void Table::print(const std::string& indent) const {
  std::vector<std::size_t> widths(sides_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      if (i > 0) line += "  ";
      line += sides_[i] == 'r' ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::puts(line.c_str());
  }
}

ByteProgress::ByteProgress(const std::string& description, std::uint64_t total)
    : bar_({.total = static_cast<std::int64_t>(total / kMegabyte),
            .description = description,
            .unit = "MB",
            .enabled = total >= kWorthABar}) {}

void ByteProgress::advance(std::uint64_t bytes) {
  const std::uint64_t before = done_ / kMegabyte;
  done_ += bytes;
  bar_.advance(static_cast<std::int64_t>(done_ / kMegabyte - before));
}

void require_path(const std::string& path) {
  if (!path_exists(path)) throw UsageError{"there is nothing at " + path};
}

void show_error(const char* command, const std::string& message) {
  std::fflush(stdout);
  // Messages have lines of their own; what else is not printable comes from files.
  std::string shown;
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    shown +=
        (begin == 0 ? "" : "\n") + printable(std::string_view(message).substr(begin, end - begin));
    begin = end + 1;
  }
  std::fprintf(stderr, "accelerant %s: %s\n", command, shown.c_str());
}

}  // namespace accelerant::cli
