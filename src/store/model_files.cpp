#include "store/model_files.h"

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
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

// How the files of a model are opened.
class Opener {
 public:
  // Compares nothing.
  Opener() = default;

  // Compares the files that the list in this folder names, before it returns them or later.
  Opener(const std::string& folder, int threads, Compare when)
      : sums_(checksums_of_model(folder).value_or(ModelChecksums())),
        list_(join_path(folder, kModelChecksumsName)),
        threads_(threads),
        when_(when) {}

  // Call it before the file is read by other means. `name`: how the model calls it.
  void compare(const std::string& path, const std::string& name) const {
    const auto found = sums_.find(name);
    if (found == sums_.end()) return;
    if (const auto damage = damage_of(path, found->second, list_, threads_)) throw Error(*damage);
  }

  // Whether all files were compared with one list, or there is only one. Otherwise a save may have
  // replaced some of them before they were opened, and the others after that.
  bool files_belong_together() const { return opened_ == 1 || uncompared_ == 0; }

  std::unique_ptr<WeightFile> open_weights(const std::string& path, const std::string& name) {
    auto file = open(path, name);
    if (file->is_weights()) return file;
    throw Error(
        ErrorDetails{.problem = path + " is not a saved model",
                     .expected = "a dict of tensors, as in torch.save(model.state_dict(), path)",
                     .got = file->other_content(),
                     .hint = "`accelerant inspect` shows what is in it"});
  }

 private:
  std::unique_ptr<WeightFile> open(const std::string& path, const std::string& name) {
    ++opened_;
    const auto found = sums_.find(name);
    if (found == sums_.end()) {
      ++uncompared_;
      return open_weight_file(path);
    }
    auto file = open_weight_file(path, {.sums = found->second, .list = list_}, threads_, buffers_);
    if (when_ == Compare::before_opening) file->check_rest(threads_);
    return file;
  }

  ModelChecksums sums_;
  std::string list_;
  int threads_ = 1;
  Compare when_ = Compare::before_opening;
  std::shared_ptr<BlockBuffers> buffers_ = std::make_shared<BlockBuffers>();
  int opened_ = 0;
  int uncompared_ = 0;
};

WeightFiles open_indexed(const std::string& index_path, const std::string& folder, Opener& opener) {
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
    files.push_back(opener.open_weights(*path, name));
    require_as_indexed(*files.back(), std::move(tensors), index_path);
    failpoint("model.file_opened");
  }
  return files;
}

WeightFiles open_with(const std::string& path, Opener& opener) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "There is no model at " + path,
                             .expected = "a file, an index, or a folder that contains one"});
  }
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string name = is_folder(path) ? main_model_file(path) : name_of(path);
  const std::string found = find_model_file(folder, name).value_or(join_path(folder, name));
  if (name.ends_with(".json")) {
    opener.compare(found, name);
    return open_indexed(found, folder, opener);
  }
  WeightFiles files;
  files.push_back(opener.open_weights(found, name));
  return files;
}

void add_identity(std::string& state, const std::string& path) {
  if (const std::string identity = identity_of_file(path); !identity.empty()) {
    state += path + " " + identity + "\n";
  }
}

// Changes with every step of a save that readers can notice: when the new files begin to count,
// when each is moved, and when the list of checksums is replaced. Models without a list are told
// apart by their files.
std::string state_of_saves(const std::string& path) {
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string saving = join_path(folder, kModelSavingName);
  std::string state;
  add_identity(state, join_path(folder, kModelChecksumsName));
  try {
    for (const std::string& name : entries_of(folder)) {
      if (is_model_file(name)) add_identity(state, join_path(folder, name));
    }
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
  Opener opener;
  return open_with(path, opener);
}

WeightFiles open_checked_model(const std::string& path, int threads, Compare when) {
  constexpr int kPatientTries = 5;
  constexpr int kMostTries = 40;
  const std::string folder = is_folder(path) ? path : folder_of(path);
  for (int tries = 1;; ++tries) {
    // Saves that never rest get in the way of files that are compared later, and of slow readers.
    const bool is_last = tries == kMostTries;
    if (tries >= kPatientTries) when = Compare::before_opening;
    if (tries > kPatientTries) std::this_thread::sleep_for(std::chrono::milliseconds(tries));
    const std::string before = state_of_saves(path);
    try {
      Opener opener(folder, threads, when);
      WeightFiles files = open_with(path, opener);
      // Files that are compared later must be those of the list.
      const bool are_certain = when == Compare::before_opening && opener.files_belong_together();
      if (are_certain || state_of_saves(path) == before) return files;
    } catch (const Error&) {
      // A process that saves to the folder may have replaced files between list and comparison.
      if (is_last || state_of_saves(path) == before) throw;
    }
    if (is_last) {
      throw Error(ErrorDetails{
          .problem = path + " is saved again and again while it is opened",
          .expected = "files of one save",
          .got = "some of another one in each of " + std::to_string(kMostTries) + " attempts",
          .hint = "load it when nobody saves to it"});
    }
  }
}

std::unique_ptr<WeightFile> open_checked_file(const std::string& path, int threads) {
  constexpr int kMostTries = 5;
  const std::string list = join_path(folder_of(path), kModelChecksumsName);
  for (int tries = 1;; ++tries) {
    const bool is_last = tries == kMostTries;
    const auto sums = read_model_checksums(list);
    if (!sums || !sums->contains(name_of(path))) return open_weight_file(path);
    try {
      auto file = open_weight_file(path, {.sums = sums->at(name_of(path)), .list = list}, threads);
      // Whoever replaces a file takes it off the list first: then the list was that of another one.
      if (is_last || read_model_checksums(list) == sums) return file;
    } catch (const Error&) {
      if (is_last || read_model_checksums(list) == sums) throw;
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
