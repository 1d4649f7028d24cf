#include "cli/weights/inspection.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerant/core/error.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "store/model_folder.h"

namespace accelerant::cli {
namespace {

constexpr std::size_t kLongestState = std::size_t{256} << 20;

bool has_model(const std::string& folder) {
  try {
    checkpoint::main_model_file(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void add_model(const std::string& path, Inspection& found) {
  for (auto& file : checkpoint::open_model(path)) {
    const std::uint64_t size = size_of_file(file->path()).value_or(0);
    found.files.push_back({.name = accelerant::name_of(file->path()),
                           .size = size,
                           .content = std::move(file),
                           .in_model = true});
  }
}

// A file in the folder that does not belong to the model.
void add_other(const std::string& folder, const std::string& name, Inspection& found) {
  const auto is_same = [&](const InspectedFile& file) { return file.name == name; };
  if (std::ranges::any_of(found.files, is_same)) return;
  const std::string path = join_path(folder, name);
  InspectedFile file{.name = name, .size = size_of_file(path).value_or(0)};
  if (is_tensor_file_name(name)) {
    try {
      file.content = checkpoint::open_weight_file(path);
    } catch (const std::exception& error) {
      file.problem = error.what();
    }
  }
  found.files.push_back(std::move(file));
}

void inspect_folder(const std::string& folder, Inspection& found) {
  found.kind = "folder";
  if (path_exists(join_path(folder, checkpoint::kManifestName))) {
    found.kind = "checkpoint";
    found.manifest = checkpoint::verify(folder, checkpoint::Check::sizes);
  }
  const bool is_model = has_model(folder);
  if (is_model) {
    if (!found.manifest) found.kind = "model";
    try {
      add_model(folder, found);
    } catch (const std::exception& error) {
      found.model_problem = error.what();
    }
  }
  for (const std::string& name : entries_of(folder)) {
    if (is_tensor_file_name(name) && size_of_file(join_path(folder, name))) {
      add_other(folder, name, found);
    }
  }
  if (found.manifest) {
    for (const auto& [name, record] : found.manifest->manifest.files) {
      if (size_of_file(join_path(folder, name))) add_other(folder, name, found);
    }
  }
  const bool is_nothing = found.files.empty() && !found.manifest && !is_model;
  if (is_nothing) checkpoint::main_model_file(folder);  // throws an Error that says what is missing
}

// The names of the parameters in the optimizers of a checkpoint. None if it has no optimizer, or
// one that cannot be read.
std::optional<std::set<std::string>> trained_names(const std::string& folder,
                                                   const checkpoint::Manifest& manifest) {
  std::set<std::string> names;
  for (const auto& [file, record] : manifest.files) {
    if (!file.starts_with("optimizer") || !file.ends_with(".json")) continue;
    try {
      const auto state = nlohmann::json::parse(read_file(join_path(folder, file), kLongestState));
      for (const auto& group : state.at("param_groups")) {
        for (const auto& name : group.at("params")) names.insert(name.get<std::string>());
      }
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return names.empty() ? std::nullopt : std::optional(std::move(names));
}

void count_trained(const std::string& folder, Inspection& found) {
  const auto names = trained_names(folder, found.manifest->manifest);
  if (!names) return;
  found.trained.emplace();
  for (const InspectedFile& file : found.files) {
    if (!file.in_model || !file.content) continue;
    // A tied weight may be stored under another name than the optimizer's.
    std::set<std::string> stored_names = *names;
    for (const auto& [alias, stored] : file.content->aliases()) {
      if (names->contains(alias)) stored_names.insert(stored);
    }
    for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
      if (stored_names.contains(tensor.name)) found.trained->add(tensor);
    }
  }
}

void count(Inspection& found) {
  const auto is_in_model = [](const InspectedFile& file) { return file.in_model; };
  const bool has_any = std::ranges::any_of(found.files, is_in_model);
  for (InspectedFile& file : found.files) {
    if (!file.content) continue;
    // Without a model of the usual name, every file of weights counts.
    if (!has_any) file.in_model = file.content->is_weights();
    if (!file.in_model) continue;
    for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
      found.total.add(tensor);
      found.by_dtype[tensor.dtype].add(tensor);
    }
  }
}

}  // namespace

void Total::add(const checkpoint::WeightTensor& tensor) {
  ++tensors;
  elements += tensor.elements();
  bytes += tensor.bytes;
}

bool is_tensor_file_name(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".pt") ||
         name.ends_with(".pth");
}

Inspection inspect(const std::string& path) {
  require_path(path);
  Inspection found;
  if (is_folder(path)) {
    inspect_folder(path, found);
  } else if (path.ends_with(".json")) {
    found.kind = "model";
    add_model(path, found);
  } else {
    found.kind = "file";
    found.files.push_back({.name = accelerant::name_of(path),
                           .size = size_of_file(path).value_or(0),
                           .content = checkpoint::open_weight_file(path)});
  }
  count(found);
  if (found.manifest && found.total.tensors > 0) count_trained(path, found);
  return found;
}

}  // namespace accelerant::cli
