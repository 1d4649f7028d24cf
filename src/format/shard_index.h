// The index of a model in several files, "model.safetensors.index.json", as Hugging Face's programs
// write and read it.
//
//   ShardIndex index = read_shard_index("llama/model.safetensors.index.json");
//   std::string file = index.weight_map.at("lm_head.weight");   // "model-00004-of-00004.safetensors"
//
// Names of files in an index are checked: none leads out of the folder of the index.
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
  // Bytes of all tensors, shared memory counted once. Writers differ in what they count.
  std::optional<std::uint64_t> total_size = {};

  // Other entries of "metadata", for example total_parameters, each value as JSON text.
  std::map<std::string, std::string> other_metadata = {};

  // The file of each tensor, relative to the folder of the index.
  std::map<std::string, std::string> weight_map = {};

  // Each file once, in order.
  std::vector<std::string> files() const;

  bool operator==(const ShardIndex&) const = default;
};

// The index of a plan that is sharded.
ShardIndex index_of(const ShardPlan& plan);

// Throws Error, which begins with `label`, for what is no index, for names that are there twice,
// and for names of files that check_shard_name refuses. Reading a file expects the extension that
// its own name has: that of "pytorch_model.bin.index.json" is ".bin".
ShardIndex parse_shard_index(std::string_view json, const std::string& label = "index",
                             const std::string& extension = ".safetensors");
ShardIndex read_shard_index(const std::string& path);

// As Accelerate and transformers print it: indented by two, keys in order, ASCII only, and a final
// newline.
std::string print_shard_index(const ShardIndex& index);

// Throws Error, which begins with `label`, unless `file` stays in its folder, on Linux and on
// Windows: relative, without drive and without "..", and with the extension. Subfolders are
// allowed.
void check_shard_name(const std::string& file, const std::string& label = "index",
                      const std::string& extension = ".safetensors");

}  // namespace accelerant::format
