#include "checkpoint/full_disk.h"

#include <sys/statvfs.h>

#include <array>
#include <cstdio>
#include <exception>
#include <optional>

#include "core/files.h"
#include "store/rotation.h"

namespace accelerant::checkpoint {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), value < 9.95 ? "%.1f %s" : "%.0f %s", value,
                kUnits[unit]);
  return text.data();
}

// For this user, in the file system of the nearest folder that exists.
std::optional<std::uint64_t> free_bytes(std::string folder) {
  while (!path_exists(folder) && folder != folder_of(folder)) folder = folder_of(folder);
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

std::uint64_t bytes_of(const NumberedCheckpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const auto& [name, record] : read_manifest(checkpoint.path).files) bytes += record.size;
  return bytes;
}

std::string text_on_space(const std::string& folder, std::uint64_t bytes) {
  if (bytes == 0) return "";
  std::string text = "It needs " + bytes_text(bytes);
  // With a quota, more may be free than this user can have.
  const auto free = free_bytes(folder);
  if (free && *free < bytes) text += ", and the disk of " + folder + " has " + bytes_text(*free);
  return text + ". ";
}

std::string text_on_others(const std::string& folder) {
  const auto others = list_checkpoints(folder);
  if (others.empty()) return "";
  const std::string oldest = others.front().path;
  std::string text = "Earlier checkpoints are kept, ";
  if (others.size() == 1) {
    return text + oldest + " with " + bytes_text(bytes_of(others.front())) +
           ". The disk needs room for two, since a checkpoint is complete before the one before it "
           "is removed";
  }
  text += std::to_string(others.size()) + " of them, the oldest with " +
          bytes_text(bytes_of(others.front())) + ". If you can do without it, remove " + oldest;
  const std::string most = std::to_string(others.size() - 1);
  return text + ", and set project.total_limit to " + most +
         " or less: a checkpoint is complete before the oldest is removed";
}

}  // namespace

std::string advice_on_full_disk(const std::string& checkpoint, std::uint64_t bytes) {
  const std::string folder = folder_of(checkpoint);
  try {
    const std::string text = text_on_space(folder, bytes) + text_on_others(folder);
    return text.empty() ? "" : "\n" + text;
  } catch (const std::exception&) {
    return "";  // the error is worth more than the advice
  }
}

}  // namespace accelerant::checkpoint
