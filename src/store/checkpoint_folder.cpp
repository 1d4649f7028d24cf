#include "store/checkpoint_folder.h"

#include <climits>
#include <cstddef>
#include <exception>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "core/files.h"
#include "core/texts.h"
#include "store/file_writer.h"
#include "store/verify.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kIdLength = 12;

// Of the names beside a checkpoint, and of its lock.
std::size_t longest_suffix(const Owner& owner) {
  const std::size_t id = owner.id.empty() ? 0 : 1 + kIdLength;
  return id + std::string_view(".removed.tmp").size();
}

std::string marked(const Owner& owner) { return owner.id.empty() ? "" : "." + owner.id; }

std::string checked_path(std::string path, const Owner& owner) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string name = name_of(path);
  if (name.empty() || name == "." || name == ".." ||
      name.size() + longest_suffix(owner) > NAME_MAX) {
    throw Error(ErrorDetails{
        .problem = "A checkpoint cannot be saved as '" + path + "'",
        .expected = "the path of a folder to create",
        .got = name.size() > 2 ? "a name that is too long" : "the name '" + name + "'"});
  }
  return path;
}

// Detected by a mark in its manifest instead of by parsing it, so that damaged checkpoints can be
// replaced too.
bool looks_like_checkpoint(const std::string& folder) {
  constexpr std::size_t kEnough = 64 << 20;
  if (!size_of_file(join_path(folder, kManifestName))) return false;
  try {
    const std::string text = read_file(join_path(folder, kManifestName), kEnough);
    return text.find(kManifestFormat) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::optional<std::string> target_of_leftover(const std::string& name) {
  std::string_view rest = name;
  const auto cut = [&rest](std::string_view suffix) {
    const bool is_there = rest.ends_with(suffix);
    if (is_there) rest.remove_suffix(suffix.size());
    return is_there;
  };
  if (cut(".old.tmp")) return std::string(rest);
  if (!cut(".removed.tmp") && !cut(".tmp")) return std::nullopt;
  const std::size_t dot = rest.rfind('.');
  const bool has_id = dot != std::string_view::npos && rest.size() - dot == 1 + kIdLength &&
                      rest.find_first_not_of("0123456789abcdef", dot + 1) == std::string_view::npos;
  return std::string(has_id ? rest.substr(0, dot) : rest);
}

CheckpointFolder::CheckpointFolder(const std::string& target, Existing existing, Owner owner)
    : path_(checked_path(target, owner)),
      parent_(folder_of(path_)),
      staging_(path_ + marked(owner) + ".tmp"),
      old_(path_ + ".old.tmp"),
      removed_(path_ + marked(owner) + ".removed.tmp"),
      existing_(existing),
      owner_(std::move(owner)) {}

void CheckpointFolder::begin() const {
  require_held();
  recover();
  check_target();
  make_folders(parent_);
  clear_leftovers();
  make_folder(staging_);
  sync_folder(parent_);
  failpoint("checkpoint.begun");
}

std::string CheckpointFolder::new_file(const std::string& name) const {
  check_file_name(name);
  if (!is_folder(staging_)) {
    throw Error(ErrorDetails{
        .problem = "A file of the checkpoint " + path_ + " cannot be written",
        .expected = "the folder " + staging_,
        .got = "no such folder",
        .hint = "one process must begin the save before the others write, and all of them must "
                "see the same file system"});
  }
  const std::string path = join_path(staging_, name);
  if (folder_of(path) != staging_) make_folders(folder_of(path));
  return path;
}

void CheckpointFolder::commit(const Manifest& manifest) const {
  require_held();
  check_files(manifest);
  const std::string text = to_text(manifest);
  failpoint("checkpoint.before_manifest");
  write_manifest(text);
  failpoint("checkpoint.before_folder_sync");
  sync_folders(manifest);
  failpoint("checkpoint.before_rename");
  put_in_place();
  failpoint("checkpoint.after_rename");
  sync_folder(parent_);
  failpoint("checkpoint.committed");
  remove_replaced();
}

void CheckpointFolder::abandon() const noexcept {
  try {
    remove_staging();
  } catch (const std::exception&) {
    // It stays for the next begin(), which reports why it cannot be removed.
  }
}

void CheckpointFolder::recover() const {
  if (path_exists(path_) || !path_exists(old_)) return;
  failpoint("checkpoint.before_recover");
  try {
    rename_path(old_, path_);
  } catch (const Error&) {
    if (!path_exists(path_) || path_exists(old_)) throw;  // else another process has just done it
  }
  sync_folder(parent_);
  failpoint("checkpoint.recovered");
}

void CheckpointFolder::clear_leftovers() const {
  recover();
  std::vector<std::string> found;
  if (is_folder(parent_)) {
    for (const std::string& name : entries_of(parent_)) {
      if (target_of_leftover(name) != name_of(path_) || name == name_of(old_)) continue;
      found.push_back(join_path(parent_, name));
    }
  }
  require_held();
  // One of them may be the complete checkpoint that was replaced. It must not lose files before the
  // disk knows that the new one has its name.
  if (!found.empty()) sync_folder(parent_);
  for (const std::string& path : found) remove_tree(path);
  if (path_exists(old_)) discard(old_);
}

void CheckpointFolder::remove() const { discard(path_); }

void CheckpointFolder::check_target() const {
  if (!path_exists(path_)) return;
  if (existing_ == Existing::replace) return check_replaceable();
  throw Error(ErrorDetails{.problem = "The checkpoint cannot be saved as " + path_,
                           .expected = "a path that does not exist",
                           .got = "an existing path",
                           .hint = "choose another path, remove this one, or ask for it to be "
                                   "replaced"});
}

void CheckpointFolder::check_replaceable() const {
  const bool is_real_folder = is_folder(path_) && !is_link(path_);
  if (is_real_folder && (looks_like_checkpoint(path_) || entries_of(path_).empty())) return;
  throw Error(
      ErrorDetails{.problem = path_ + " cannot be replaced by a checkpoint",
                   .expected = "a checkpoint or an empty folder",
                   .got = is_link(path_)   ? "a symbolic link"
                          : is_real_folder ? "a folder with other files"
                                           : "a file",
                   .hint = is_link(path_) ? "use the folder it points to" : "choose another path"});
}

void CheckpointFolder::check_files(const Manifest& manifest) const {
  const std::vector<std::string> problems = wrong_sizes(staging_, manifest);
  if (problems.empty()) return;
  throw Error(ErrorDetails{
      .problem = "The checkpoint " + path_ + " is incomplete",
      .expected = "the files of its manifest in " + staging_,
      .got = list_text(problems),
      .hint = "all processes must write to the same file system, and only one run to this path"});
}

void CheckpointFolder::write_manifest(const std::string& text) const {
  FileWriter file(join_path(staging_, kManifestName));
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

void CheckpointFolder::sync_folders(const Manifest& manifest) const {
  std::set<std::string> folders = {staging_};
  for (const auto& [name, record] : manifest.files) {
    for (std::string folder = folder_of(name); folder != "."; folder = folder_of(folder)) {
      folders.insert(join_path(staging_, folder));
    }
  }
  for (const std::string& folder : folders) sync_folder(folder);
}

void CheckpointFolder::put_in_place() const {
  require_held();
  check_target();  // again: something may have been created there meanwhile
  if (!path_exists(path_)) {
    rename_path(staging_, path_);
  } else if (!exchange_paths(staging_, path_)) {
    replace_by_two_renames();
  }
}

void CheckpointFolder::replace_by_two_renames() const {
  rename_path(path_, old_);
  try {
    sync_folder(parent_);
    failpoint("checkpoint.old_aside");
    rename_path(staging_, path_);
  } catch (...) {
    rename_back();
    throw;
  }
}

// The Error to report is the earlier one; the next begin() tries again.
void CheckpointFolder::rename_back() const noexcept {
  try {
    recover();
  } catch (const std::exception&) {
  }
}

// It may be the complete checkpoint that was replaced. It must not lose files before the disk knows
// that the new one has its name.
void CheckpointFolder::remove_staging() const {
  if (!path_exists(staging_)) return;
  sync_folder(parent_);
  remove_tree(staging_);
}

void CheckpointFolder::require_held() const {
  if (owner_.require_held) owner_.require_held();
}

// The save has succeeded by now. The next begin() removes whatever cannot be removed here.
void CheckpointFolder::remove_replaced() const {
  try {
    for (const std::string& replaced : {staging_, old_}) {
      if (path_exists(replaced)) discard(replaced);
    }
  } catch (const std::exception&) {
  }
}

void CheckpointFolder::discard(const std::string& folder) const {
  remove_tree(removed_);  // left by an interrupted removal
  failpoint("checkpoint.before_remove");
  require_held();
  rename_path(folder, removed_);
  sync_folder(parent_);
  failpoint("checkpoint.set_aside");
  remove_tree(removed_);
  failpoint("checkpoint.removed");
}

}  // namespace accelerant::checkpoint
