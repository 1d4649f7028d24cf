#include "cli/weights/text.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "core/files.h"

namespace accelerant::cli {
namespace {

constexpr std::uint64_t kMegabyte = 1'000'000;
constexpr std::uint64_t kWorthABar = 256 * kMegabyte;

std::size_t width_of(const std::string& text) {
  // Counts code points, which is good enough for names of tensors.
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
    if (size < 999.95) break;  // what rounds to 1000.0 belongs to the next unit
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

std::string plural(std::uint64_t count, const std::string& noun) {
  return count_text(count) + " " + noun + (count == 1 ? "" : "s");
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

int checking_threads() {
  constexpr unsigned kMost = 16;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMost));
}

void require_path(const std::string& path) {
  if (!path_exists(path)) throw UsageError{path + " does not exist"};
}

}  // namespace accelerant::cli
