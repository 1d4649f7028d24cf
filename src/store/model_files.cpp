#include "store/model_files.h"

#include <map>
#include <set>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "format/shard_index.h"
#include "store/model_folder.h"

namespace accelerant::checkpoint {
namespace {

// The names that an index lists for this file.
std::vector<std::string> stored_names(const WeightFile& file) {
  std::vector<std::string> names;
  for (const WeightTensor& tensor : file.tensors()) names.push_back(tensor.name);
  if (file.stores_aliases()) {
    for (const auto& [alias, kept] : file.aliases()) names.push_back(alias);
  }
  return names;
}

void require_as_indexed(const WeightFile& file, std::set<std::string> expected,
                        const std::string& index) {
  std::string faults;
  for (const std::string& name : stored_names(file)) {
    if (expected.erase(name) == 0) faults += "\n  only in the file: " + name;
  }
  for (const std::string& name : expected) faults += "\n  only in the index: " + name;
  if (faults.empty()) return;
  throw Error(file.path() + " does not match " + index + ":" + faults +
              "\n  Download or save the model again.");
}

std::unique_ptr<WeightFile> open_weights_of_model(const std::string& path) {
  auto file = open_weight_file(path);
  if (file->is_weights()) return file;
  throw Error(
      ErrorDetails{.problem = path + " is not a saved model",
                   .expected = "a dict of tensors, as in torch.save(model.state_dict(), path)",
                   .got = file->other_content(),
                   .hint = "`accelerant inspect` shows what is in it"});
}

WeightFiles open_indexed(const std::string& index_path, const std::string& folder) {
  std::map<std::string, std::set<std::string>> by_file;
  for (const auto& [tensor, file] : format::read_shard_index(index_path).weight_map) {
    by_file[file].insert(tensor);
  }
  WeightFiles files;
  for (auto& [name, tensors] : by_file) {
    const auto path = find_model_file(folder, name);
    if (!path) {
      throw Error(
          ErrorDetails{.problem = "A file of the model is missing",
                       .expected = join_path(folder, name) + ", which " + index_path + " lists",
                       .hint = "download or save the model again"});
    }
    files.push_back(open_weights_of_model(*path));
    require_as_indexed(*files.back(), std::move(tensors), index_path);
  }
  return files;
}

}  // namespace

WeightFiles open_model(const std::string& path) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "There is no model at " + path,
                             .expected = "a file, an index, or a folder that contains one"});
  }
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string name = is_folder(path) ? main_model_file(path) : name_of(path);
  const std::string found = find_model_file(folder, name).value_or(join_path(folder, name));
  if (name.ends_with(".json")) return open_indexed(found, folder);
  WeightFiles files;
  files.push_back(open_weights_of_model(found));
  return files;
}

TensorsByName::TensorsByName(const WeightFiles& files) : files_(files) {
  for (const auto& file : files_) {
    for (const WeightTensor& tensor : file->tensors()) {
      places_.emplace(tensor.name, Place{file.get(), &tensor, tensor.name});
    }
  }
  // A name that is stored in one file is not an alias of a tensor in another.
  for (const auto& file : files_) {
    for (const auto& [alias, kept] : file->aliases()) {
      Place place = places_.at(kept);
      if (file->stores_aliases()) place.stored_name = alias;
      places_.emplace(alias, std::move(place));
    }
  }
}

std::optional<Place> TensorsByName::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> TensorsByName::names() const {
  std::vector<std::string> names;
  for (const auto& file : files_) {
    for (std::string& name : stored_names(*file)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace accelerant::checkpoint
