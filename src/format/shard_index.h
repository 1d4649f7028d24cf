// The index of a model in several files, "model.safetensors.index.json", as Hugging Face's
// libraries write and read it.
//
//   ShardIndex index = read_shard_index("llama/model.safetensors.index.json");
//   std::string file = index.weight_map.at("lm_head.weight");   // "model-00004-of-00004.safetensors"
//
// File names in an index are checked: none can lead out of the folder of the index.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/shard_split.h"

namespace accelerant::format {

struct ShardIndex {
  // Bytes of all tensors, counting shared memory once. Writers differ in what they count.
  std::optional<std::uint64_t> total_size = {};

  // Other entries of "metadata", for example total_parameters, with values as JSON text.
  std::map<std::string, std::string> other_metadata = {};

  // The file of each tensor, relative to the folder of the index.
  std::map<std::string, std::string> weight_map = {};

  // Each file once, in order.
  std::vector<std::string> files() const;

  bool operator==(const ShardIndex&) const = default;
};

// The index of a sharded plan.
ShardIndex index_of(const ShardPlan& plan);

// Throw Error, beginning with `label`, for anything that is not an index, for duplicate names, and
// for file names that check_shard_name rejects. read_shard_index expects the extension in the name
// of the index: ".bin" for "pytorch_model.bin.index.json".
ShardIndex parse_shard_index(std::string_view json, const std::string& label = "index",
                             const std::string& extension = ".safetensors");
ShardIndex read_shard_index(const std::string& path);

// In the format of Accelerate and transformers: indented by two, keys in order, ASCII only, with a
// final newline.
std::string print_shard_index(const ShardIndex& index);

// Throws Error, beginning with `label`, unless `file` stays in its folder on both Linux and
// Windows: relative, without drive or "..", and with the extension. Subfolders are allowed.
void check_shard_name(const std::string& file, const std::string& label = "index",
                      const std::string& extension = ".safetensors");

}  // namespace accelerant::format
