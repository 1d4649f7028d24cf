#include "checkpoint/model_files.h"

#include <map>
#include <set>

#include "accelerant/core/error.h"
#include "accelerant/format/shard_index.h"
#include "checkpoint/model_folder.h"
#include "core/files.h"

namespace accelerant::checkpoint {
namespace {

constexpr const char* kIndexEnding = ".index.json";

struct IndexedFile {
  std::string name = {};
  std::set<std::string> tensors = {};
};

std::vector<IndexedFile> files_of(const format::ShardIndex& index) {
  std::map<std::string, std::set<std::string>> by_file;
  for (const auto& [tensor, file] : index.weight_map) by_file[file].insert(tensor);
  std::vector<IndexedFile> files;
  for (auto& [name, tensors] : by_file) files.push_back({name, std::move(tensors)});
  return files;
}

// Every tensor in the file that the index names for it, and no other.
void require_as_indexed(const TensorFile& file, std::set<std::string> expected,
                        const std::string& index) {
  std::string faults;
  for (const StoredTensor& tensor : file.tensors()) {
    if (expected.erase(tensor.name) == 0) faults += "\n  only in the file: " + tensor.name;
  }
  for (const std::string& name : expected) faults += "\n  only in the index: " + name;
  if (faults.empty()) return;
  throw Error(file.path() + " is not what " + index + " says:" + faults +
              "\n  Download or save the model again.");
}

}  // namespace

void ModelFiles::add(std::unique_ptr<TensorFile> file) {
  for (const StoredTensor& tensor : file->tensors()) {
    const auto [entry, is_new] = places_.emplace(tensor.name, Place{file.get(), &tensor});
    if (is_new) continue;
    throw Error(ErrorDetails{.problem = "The tensor '" + tensor.name + "' is stored twice",
                             .expected = "every tensor in one file",
                             .got = entry->second.file->path() + " and " + file->path()});
  }
  files_.push_back(std::move(file));
}

ModelFiles ModelFiles::open(const std::string& path) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "There is no model at " + path,
                             .expected = "a file, an index, or a folder with one of them"});
  }
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string name = is_folder(path) ? main_model_file(path) : name_of(path);
  const std::string found = find_model_file(folder, name).value_or(join_path(folder, name));
  ModelFiles files;
  if (!name.ends_with(kIndexEnding)) {
    files.add(open_tensor_file(found));
  } else {
    for (IndexedFile& file : files_of(format::read_shard_index(found))) {
      const auto shard = find_model_file(folder, file.name);
      if (!shard) {
        throw Error(
            ErrorDetails{.problem = "A file of the model is missing",
                         .expected = join_path(folder, file.name) + ", which " + found + " names",
                         .hint = "download or save the model again"});
      }
      auto opened = open_tensor_file(*shard);
      require_as_indexed(*opened, std::move(file.tensors), found);
      files.add(std::move(opened));
    }
  }
  return files;
}

std::optional<Place> ModelFiles::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return found->second;
  for (const auto& file : files_) {
    const auto alias = file->aliases().find(name);
    if (alias != file->aliases().end()) return places_.at(alias->second);
  }
  return std::nullopt;
}

std::vector<std::string> ModelFiles::names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) {
    for (const StoredTensor& tensor : file->tensors()) names.push_back(tensor.name);
  }
  return names;
}

}  // namespace accelerant::checkpoint
