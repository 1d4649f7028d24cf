#include "accelerant/format/sharded_safetensors.h"

#include <utility>

#include "accelerant/core/error.h"
#include "format/safetensors_header.h"

namespace accelerant::format {
namespace {

// With the final slash; empty for a path without folder.
std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

void check_named_tensors(const ShardIndex& index,
                         const std::map<std::string, SafetensorsFile>& files,
                         const std::string& label) {
  for (const auto& [name, file] : index.weight_map) {
    if (files.at(file).find(name) != nullptr) continue;
    throw Error(ErrorDetails{.problem = label + ": tensor " + quoted(name) + " is not in its file",
                             .expected = "it in " + quoted(file),
                             .got = {},
                             .hint = "index and files are of different models, or a file is old"});
  }
}

void check_other_tensors(const ShardIndex& index,
                         const std::map<std::string, SafetensorsFile>& files,
                         const std::string& label) {
  for (const auto& [name, file] : files) {
    for (const TensorInfo& tensor : file.tensors()) {
      const auto place = index.weight_map.find(tensor.name);
      if (place != index.weight_map.end() && place->second == name) continue;
      const bool is_elsewhere = place != index.weight_map.end();
      throw Error(ErrorDetails{
          .problem =
              label + ": file " + quoted(name) + " has a tensor that the index does not name",
          .expected = is_elsewhere ? "it only in " + quoted(place->second) : std::string(),
          .got = quoted(tensor.name),
          .hint = "index and files are of different models; strict = false ignores such tensors"});
    }
  }
}

}  // namespace

ShardedSafetensors ShardedSafetensors::open(const std::string& path, const ShardOptions& options) {
  const OpenOptions open_options{.access = options.access};
  const std::string folder = folder_of(path);
  ShardedSafetensors model;
  model.path_ = path;
  if (!path.ends_with(".json")) {
    const std::string name = path.substr(folder.size());
    const SafetensorsFile& file =
        model.files_.emplace(name, SafetensorsFile::open(path, open_options)).first->second;
    for (const TensorInfo& tensor : file.tensors()) {
      model.index_.weight_map.emplace(tensor.name, name);
    }
    return model;
  }
  model.index_ = read_shard_index(path);
  for (const std::string& name : model.index_.files()) {
    model.files_.emplace(name, SafetensorsFile::open(folder + name, open_options));
  }
  check_named_tensors(model.index_, model.files_, path);
  if (options.strict) check_other_tensors(model.index_, model.files_, path);
  return model;
}

std::vector<std::string> ShardedSafetensors::names() const {
  std::vector<std::string> names;
  names.reserve(index_.weight_map.size());
  for (const auto& [name, file] : index_.weight_map) names.push_back(name);
  return names;
}

const SafetensorsFile& ShardedSafetensors::file_of(const std::string& name) const {
  const auto place = index_.weight_map.find(name);
  if (place == index_.weight_map.end()) {
    throw Error(path_ + ": there is no tensor " + quoted(name));
  }
  return files_.at(place->second);
}

std::uint64_t ShardedSafetensors::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, file] : index_.weight_map) total += files_.at(file).info(name).bytes();
  return total;
}

}  // namespace accelerant::format
