#include "store/model_files.h"

#include <sys/stat.h>

#include <functional>
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

// Called with the path and the name of each file of a model before it is opened.
using BeforeOpening = std::function<void(const std::string& path, const std::string& name)>;

WeightFiles open_indexed(const std::string& index_path, const std::string& folder,
                         const BeforeOpening& before) {
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
    before(*path, name);
    files.push_back(open_weights_of_model(*path));
    require_as_indexed(*files.back(), std::move(tensors), index_path);
  }
  return files;
}

WeightFiles open_after(const std::string& path, const BeforeOpening& before) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "There is no model at " + path,
                             .expected = "a file, an index, or a folder that contains one"});
  }
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string name = is_folder(path) ? main_model_file(path) : name_of(path);
  const std::string found = find_model_file(folder, name).value_or(join_path(folder, name));
  before(found, name);
  if (name.ends_with(".json")) return open_indexed(found, folder, before);
  WeightFiles files;
  files.push_back(open_weights_of_model(found));
  return files;
}

WeightFiles open_once_checked(const std::string& path, int threads) {
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const auto sums = checksums_of_model(folder);
  const std::string list = join_path(folder, kModelChecksumsName);
  return open_after(path, [&](const std::string& file, const std::string& name) {
    if (!sums || !sums->contains(name)) return;
    if (const auto damage = damage_of(file, sums->at(name), list, threads)) throw Error(*damage);
  });
}

void add_identity(std::string& state, const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return;
  state += path + " " + std::to_string(status.st_dev) + " " + std::to_string(status.st_ino) + " " +
           std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec) +
           "\n";
}

// Changes with every step of a save that readers can notice: when the new files begin to count,
// when each is moved, and when the list of checksums is replaced.
std::string state_of_saves(const std::string& path) {
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string saving = join_path(folder, kModelSavingName);
  std::string state;
  add_identity(state, join_path(folder, kModelChecksumsName));
  try {
    if (is_folder(saving)) {
      for (const std::string& name : entries_of(saving)) {
        add_identity(state, join_path(saving, name));
      }
    }
  } catch (const Error&) {
    state += "the folder of the save has just been removed";
  }
  return state;
}

}  // namespace

WeightFiles open_model(const std::string& path) {
  return open_after(path, [](const std::string&, const std::string&) {});
}

WeightFiles open_checked_model(const std::string& path, int threads) {
  constexpr int kMostTries = 5;
  for (int tries = 1;; ++tries) {
    const std::string before = state_of_saves(path);
    try {
      return open_once_checked(path, threads);
    } catch (const Error&) {
      // A process that saves to the folder may have replaced files between list and comparison.
      if (tries == kMostTries || state_of_saves(path) == before) throw;
    }
  }
}

std::optional<ModelChecksums> checksums_of_model(const std::string& folder) {
  const auto list = find_model_file(folder, kModelChecksumsName);
  return list ? read_model_checksums(*list) : std::nullopt;
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
