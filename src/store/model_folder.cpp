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

constexpr const char* kComplete = "complete";
constexpr std::size_t kLongestList = 64 << 20;

std::string saving_in(const std::string& folder) { return join_path(folder, kModelSavingName); }

// Whether a save may write and remove files of that name.
bool is_own_file(const std::string& name) {
  return is_model_file(name) || name == kModelChecksumsName;
}

// The checksums of the model before would accuse files of the new one. Those of the new one come
// last, see commit_model().
void remove_old_checksums(const std::string& folder, const std::vector<std::string>& files) {
  const bool are_moved = std::ranges::find(files, kModelChecksumsName) != files.end() &&
                         !path_exists(join_path(saving_in(folder), kModelChecksumsName));
  const std::string old = join_path(folder, kModelChecksumsName);
  if (are_moved || !path_exists(old)) return;
  failpoint("model.before_checksums");
  remove_file(old);
  sync_folder(folder);
}

void mark_complete(const std::string& folder, const std::vector<std::string>& files) {
  const std::string saving = saving_in(folder);
  sync_folder(saving);
  failpoint("model.before_complete");
  // An incomplete list must not be found under the name that counts.
  const std::string list = nlohmann::json(files).dump();
  const std::string unnamed = join_path(saving, "complete.tmp");
  FileWriter writer(unnamed);
  writer.write(std::as_bytes(std::span(list)));
  writer.finish();
  rename_path(unnamed, join_path(saving, kComplete));
  failpoint("model.complete");
  sync_folder(saving);
  sync_folder(folder);
}

void put_in_place(const std::string& folder, const std::vector<std::string>& files) {
  const std::string saving = saving_in(folder);
  remove_old_checksums(folder, files);
  for (const std::string& file : files) {
    const std::string from = join_path(saving, file);
    if (!path_exists(from)) continue;  // already moved before a crash
    failpoint("model.before_move");
    rename_path(from, join_path(folder, file));
  }
  sync_folder(folder);
  for (const std::string& name : entries_of(folder)) {
    const bool is_stale = is_own_file(name) && std::ranges::find(files, name) == files.end();
    if (!is_stale) continue;
    failpoint("model.before_stale");
    remove_file(join_path(folder, name));
  }
  failpoint("model.before_end");
  remove_tree(saving);
  sync_folder(folder);
}

}  // namespace

bool is_model_file(const std::string& name) {
  static const std::regex pattern(
      R"((model(-\d{5}-of-\d{5})?\.safetensors|pytorch_model(-\d{5}-of-\d{5})?\.bin)(\.index\.json)?)");
  return std::regex_match(name, pattern);
}

std::string begin_model(const std::string& folder) {
  if (path_exists(folder) && !is_folder(folder)) {
    throw Error(ErrorDetails{.problem = "A model cannot be saved to " + folder,
                             .expected = "a folder",
                             .got = "a file"});
  }
  make_folders(folder);
  if (const auto waiting = waiting_files(folder)) put_in_place(folder, *waiting);
  const std::string saving = saving_in(folder);
  remove_tree(saving);
  make_folders(saving);
  return saving;
}

void commit_model(const std::string& folder, std::vector<std::string> files,
                  const ModelChecksums& sums) {
  try {
    if (!sums.empty()) {
      FileWriter list(join_path(saving_in(folder), kModelChecksumsName), SumUp::no);
      const std::string text = to_text(sums);
      list.write(std::as_bytes(std::span(text)));
      list.finish();
      // Last: whoever does not know about an unfinished save must not find them beside old files.
      files.push_back(kModelChecksumsName);
    }
    mark_complete(folder, files);
  } catch (...) {
    abandon_model(folder);
    throw;
  }
  put_in_place(folder, files);
}

void abandon_model(const std::string& folder) {
  try {
    remove_tree(saving_in(folder));
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
