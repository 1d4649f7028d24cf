#include "cli/weights/inspection.h"

#include <algorithm>
#include <exception>

#include "accelerant/core/error.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "store/model_folder.h"

namespace accelerant::cli {
namespace {

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

// A file in the folder that is not of the model.
void add_other(const std::string& folder, const std::string& name, Inspection& found) {
  const auto is_it = [&](const InspectedFile& file) { return file.name == name; };
  if (std::ranges::any_of(found.files, is_it)) return;
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
  if (is_nothing) checkpoint::main_model_file(folder);  // says what is missing
}

void count(Inspection& found) {
  const auto is_in_model = [](const InspectedFile& file) { return file.in_model; };
  const bool has_any = std::ranges::any_of(found.files, is_in_model);
  for (InspectedFile& file : found.files) {
    if (!file.content) continue;
    // Without a model of the usual name every file of weights counts.
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
  parameters += tensor.elements();
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
  return found;
}

}  // namespace accelerant::cli
