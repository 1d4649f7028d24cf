#include "store/rotation.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <optional>
#include <ranges>
#include <set>
#include <string_view>
#include <tuple>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "store/checkpoint_folder.h"
#include "store/verify.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::size_t kMostDigits = 18;  // fit 64 bits, with one to spare for the next number

// The number in exactly checkpoint_<digits>.
std::optional<std::int64_t> number_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.empty() || name.size() > kMostDigits) return std::nullopt;
  if (name.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::int64_t number = 0;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

std::vector<std::string> entries_if_any(const std::string& folder) {
  return is_folder(folder) ? entries_of(folder) : std::vector<std::string>();
}

// All entries with such a name, by number.
std::vector<NumberedCheckpoint> list_numbered(const std::string& folder) {
  std::vector<NumberedCheckpoint> found;
  for (const std::string& name : entries_if_any(folder)) {
    if (const auto number = number_of(name)) found.push_back({*number, join_path(folder, name)});
  }
  std::ranges::sort(found, {}, [](const NumberedCheckpoint& one) {
    return std::tie(one.number, one.path);  // checkpoint_7 and checkpoint_007 have the same number
  });
  return found;
}

bool has_manifest(const NumberedCheckpoint& one) {
  return size_of_file(join_path(one.path, kManifestName)).has_value();
}

std::string described(const std::string& path, const std::vector<std::string>& problems) {
  std::string text = path + " cannot be used:";
  for (const std::string& problem : problems) text += "\n  " + problem;
  return text;
}

[[noreturn]] void refuse_unreadable(const std::string& path, const std::string& text) {
  throw Error(ErrorDetails{.problem = "The training is not resumed from a checkpoint before " +
                                      path + ", which may be good",
                           .expected = "access to all of its files",
                           .got = text,
                           .hint = "make it readable, or write the path of another checkpoint to "
                                   "project.resume"});
}

}  // namespace

std::string lock_of_project(const std::string& project) {
  return join_path(project, "accelerant.lock");
}

std::string checkpoints_folder(const std::string& project) {
  return join_path(project, "checkpoints");
}

std::string checkpoint_path(const std::string& folder, std::int64_t number) {
  return join_path(folder, std::string(kPrefix) + std::to_string(number));
}

std::vector<NumberedCheckpoint> list_checkpoints(const std::string& folder) {
  std::vector<NumberedCheckpoint> found = list_numbered(folder);
  std::erase_if(found, [](const NumberedCheckpoint& one) { return !has_manifest(one); });
  return found;
}

std::vector<NumberedCheckpoint> list_without_manifest(const std::string& folder) {
  std::vector<NumberedCheckpoint> found = list_numbered(folder);
  std::erase_if(found, [](const NumberedCheckpoint& one) {
    return size_of_file(one.path).has_value() || has_manifest(one);
  });
  return found;
}

std::int64_t next_number(const std::string& folder) {
  const std::vector<NumberedCheckpoint> found = list_numbered(folder);
  return found.empty() ? 0 : found.back().number + 1;
}

std::vector<std::string> clean_leftovers(const std::string& folder, const Owner& owner) {
  const std::vector<std::string> before = entries_if_any(folder);
  std::set<std::string> targets;
  for (const std::string& name : before) {
    const auto target = target_of_leftover(name);
    if (target && number_of(*target)) targets.insert(*target);
  }
  if (targets.empty()) return {};
  for (const std::string& target : targets) {
    CheckpointFolder(join_path(folder, target), Existing::refuse, owner).clear_leftovers();
  }
  sync_folder(folder);
  std::vector<std::string> gone;
  std::ranges::set_difference(before, entries_of(folder), std::back_inserter(gone));
  return gone;
}

std::vector<std::string> prune(const std::string& folder, std::int64_t keep, const Owner& owner) {
  const std::vector<NumberedCheckpoint> found = list_checkpoints(folder);
  const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(keep, 1));
  std::vector<std::string> removed;
  for (std::size_t at = 0; at + kept < found.size(); ++at) {
    CheckpointFolder(found[at].path, Existing::refuse, owner).remove();
    removed.push_back(found[at].path);
  }
  return removed;
}

FoundCheckpoint find_newest_valid(const std::string& folder,
                                  const std::function<void(const std::string&)>& report) {
  std::string refused;
  for (const NumberedCheckpoint& one : std::views::reverse(list_numbered(folder))) {
    Verification found = verify(one.path, Check::checksums);
    if (found.is_valid()) return {one.number, one.path, std::move(found.manifest)};
    const std::string text = described(one.path, found.problems);
    if (!found.is_damaged) refuse_unreadable(one.path, text);
    if (report) report(text);
    refused += "\n" + text;
  }
  throw Error(ErrorDetails{
      .problem = "No usable checkpoint in " + folder,
      .expected = "a folder checkpoint_<number> whose files match the sizes and checksums in its "
                  "manifest",
      .got = refused.empty() ? "none" : "only" + refused});
}

}  // namespace accelerant::checkpoint
