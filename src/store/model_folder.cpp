#include "store/model_folder.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "accelerant/core/log.h"
#include "core/files.h"
#include "core/texts.h"
#include "store/file_writer.h"
#include "store/model_checksums.h"

namespace accelerant::checkpoint {
namespace {

constexpr const char* kLock = "model.saving.lock";
constexpr const char* kComplete = "complete";
constexpr std::size_t kLongestList = 64 << 20;

std::string saving_in(const std::string& folder) { return join_path(folder, kModelSavingName); }

// Whether a save may write and remove files of that name.
bool is_own_file(const std::string& name) {
  return is_model_file(name) || name == kModelChecksumsName;
}

std::string created(const std::string& folder) {
  if (path_exists(folder) && !is_folder(folder)) {
    throw Error(ErrorDetails{.problem = "A model cannot be saved to " + folder,
                             .expected = "a folder",
                             .got = "a file"});
  }
  make_folders(folder);
  return folder;
}

void write_text(const std::string& path, const std::string& text) {
  FileWriter file(path, SumUp::no);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

// Whether a folder of that name belongs to one save.
bool is_of_one_save(const std::string& name) {
  static const std::regex pattern(R"(model\.saving\.[0-9a-f]{12}\.tmp)");
  return std::regex_match(name, pattern);
}

}  // namespace

bool is_model_file(const std::string& name) {
  static const std::regex pattern(
      R"((model(-\d{5}-of-\d{5})?\.safetensors|pytorch_model(-\d{5}-of-\d{5})?\.bin)(\.index\.json)?)");
  return std::regex_match(name, pattern);
}

ModelSave::ModelSave(const std::string& folder)
    : folder_(created(folder)),
      lock_(FolderLock::acquire(join_path(folder, kLock), "The model folder " + folder)),
      turn_(lock_->turn()),
      own_(join_path(folder, "model.saving." + lock_->id() + ".tmp")),
      staging_(join_path(own_, "new")) {
  try {
    begin();
  } catch (...) {
    remove_own();
    throw;
  }
}

ModelSave::~ModelSave() {
  if (process_.is_this_one()) remove_own();
}

void ModelSave::begin() const {
  remove_tree(own_);  // left by another thread, which had the same lock
  make_folder(own_);
  for (const std::string& name : entries_of(folder_)) {
    if (is_of_one_save(name) && name != name_of(own_)) discard(name);
  }
  if (const auto waiting = waiting_files(folder_)) {
    put_in_place(*waiting);
  } else if (path_exists(saving_in(folder_))) {
    discard(kModelSavingName);  // of version 0.1.0, which wrote the files there
  }
  make_folder(staging_);
}

std::string ModelSave::new_file(const std::string& name) const {
  lock_->require_held();
  return join_path(staging_, name);
}

void ModelSave::commit(std::vector<std::string> files, const ModelChecksums& sums) {
  if (!sums.empty()) {
    write_text(new_file(kModelChecksumsName), to_text(sums));
    // Last: whoever does not know about an unfinished save must not find them beside old files.
    files.push_back(kModelChecksumsName);
  }
  failpoint("model.before_complete");
  write_text(new_file(kComplete), nlohmann::json(files).dump());
  sync_folder(staging_);
  rename_while_held(staging_, saving_in(folder_));
  failpoint("model.complete");
  sync_folder(folder_);
  put_in_place(files);
}

void ModelSave::put_in_place(const std::vector<std::string>& files) const {
  remove_old_checksums(files);
  for (const std::string& file : files) {
    const std::string from = join_path(saving_in(folder_), file);
    if (!path_exists(from)) continue;  // already moved before a crash
    failpoint("model.before_move");
    rename_if_there(from, join_path(folder_, file));
  }
  sync_folder(folder_);
  for (const std::string& name : entries_of(folder_)) {
    const bool is_stale = is_own_file(name) && std::ranges::find(files, name) == files.end();
    if (!is_stale || is_folder(join_path(folder_, name))) continue;  // folders are not ours
    failpoint("model.before_stale");
    discard(name);
  }
  failpoint("model.before_end");
  discard(kModelSavingName);
  sync_folder(folder_);
}

// The checksums of the model before would accuse files of the new one. Those of the new one come
// last, see commit().
void ModelSave::remove_old_checksums(const std::vector<std::string>& files) const {
  // In this order: a save that was suspended may move the new one just now.
  if (!path_exists(join_path(folder_, kModelChecksumsName))) return;
  const bool are_moved = std::ranges::find(files, kModelChecksumsName) != files.end() &&
                         !path_exists(join_path(saving_in(folder_), kModelChecksumsName));
  if (are_moved) return;
  failpoint("model.before_checksums");
  discard(kModelChecksumsName);
  sync_folder(folder_);
}

void ModelSave::rename_while_held(const std::string& from, const std::string& to) const {
  lock_->require_held();
  failpoint("model.rename");  // as in every gap, it may be lost here
  try {
    rename_path(from, to);
  } catch (const Error&) {
    lock_->require_held();  // the better explanation, if it was
    throw;
  }
}

// A save that was suspended may have moved this file just now, or removed this folder of its own.
void ModelSave::rename_if_there(const std::string& from, const std::string& to) const {
  try {
    rename_while_held(from, to);
  } catch (const SystemError&) {
    if (path_exists(from)) throw;
  }
}

// By way of its own folder: see the top of the header.
void ModelSave::discard(const std::string& name) const {
  const std::string removed = join_path(own_, name);
  rename_if_there(join_path(folder_, name), removed);
  remove_tree(removed);
}

void ModelSave::remove_own() const noexcept {
  try {
    remove_tree(own_);
  } catch (const std::exception& error) {
    log(LogLevel::warning, std::string("Cannot remove the leftovers of a save: ") + error.what());
  }
}

std::optional<std::vector<std::string>> waiting_files(const std::string& folder) {
  const std::string list = join_path(saving_in(folder), kComplete);
  if (!path_exists(list)) return std::nullopt;
  std::vector<std::string> files;
  try {
    files = nlohmann::json::parse(read_file(list, kLongestList)).get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorDetails{.problem = list + " cannot be read",
                             .expected = "a list of the files beside it",
                             .got = error.what()});
  }
  for (const std::string& file : files) {
    if (is_own_file(file)) continue;
    throw Error(ErrorDetails{.problem = list + " is invalid",
                             .expected = "names of model files",
                             .got = "'" + file + "'"});
  }
  return files;
}

std::optional<std::string> find_model_file(const std::string& folder, const std::string& name) {
  if (const auto waiting = waiting_files(folder)) {
    // Model files that are not on the list belong to the previous model.
    if (is_own_file(name) && std::ranges::find(*waiting, name) == waiting->end()) {
      return std::nullopt;
    }
    const std::string path = join_path(saving_in(folder), name);
    if (path_exists(path)) return path;
  }
  const std::string path = join_path(folder, name);
  return path_exists(path) ? std::optional(path) : std::nullopt;
}

std::string main_model_file(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    if (find_model_file(folder, name)) return name;
  }
  std::vector<std::string> indices;
  std::vector<std::string> files;
  for (const std::string& name : entries_of(folder)) {
    if (name.ends_with(".index.json")) indices.push_back(name);
    if (name.ends_with(".safetensors")) files.push_back(name);
  }
  if (indices.size() == 1) return indices.front();
  if (indices.empty() && files.size() == 1) return files.front();
  throw Error(ErrorDetails{
      .problem = "No model found in " + folder,
      .expected = "model.safetensors, pytorch_model.bin, or the index of one of them",
      .got = (indices.size() == 1 ? "1 index" : std::to_string(indices.size()) + " indices") +
             " and " + counted(files.size(), "safetensors file") + " with other names",
      .hint = indices.size() + files.size() > 1 ? "pass the file instead of the folder" : ""});
}

}  // namespace accelerant::checkpoint
