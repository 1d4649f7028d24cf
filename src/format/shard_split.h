// Splits the tensors of a model over several files, exactly as huggingface_hub does.
//
//   ShardPlan plan = split_into_shards(tensors, parse_byte_size("5GB"));
//   for (const Shard& shard : plan.shards) { ... shard.file, shard.tensors ... }
//   if (plan.is_sharded()) { ... write index_of(plan) too, see shard_index.h ... }
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::format {

// Parses a size such as "10GB", "1.5 MB" or "5GiB", for options that limit sizes. KB, MB, GB and TB
// are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024. As in huggingface_hub, case does
// not matter and "b" means byte too. The unit is required. Fractions of a byte are dropped.
std::uint64_t parse_byte_size(std::string_view text);

// File names: "model.safetensors" for one file, otherwise "model-00001-of-00003.safetensors".
struct ShardNaming {
  std::string stem = "model";              // the part before the number
  std::string extension = ".safetensors";  // the part after it

  // The file name of shard `number`, counted from 1.
  std::string file(std::uint64_t number, std::uint64_t count) const;

  // The file name of the index.
  std::string index_file() const { return stem + extension + ".index.json"; }
};

struct TensorToPlace {
  std::string name = {};    // unique
  std::uint64_t bytes = 0;  // size of its data in a file

  // Tensors with the same number share their memory: they stay in one file, and only the bytes of
  // the first one count. Default: shares with no other tensor.
  std::optional<std::uint64_t> storage = {};
};

struct Shard {
  std::string file = {};
  std::vector<std::string> tensors = {};
};

struct ShardPlan {
  std::vector<Shard> shards = {};  // empty without tensors
  std::uint64_t total_size = 0;    // bytes of all tensors; shared memory counts once

  bool is_sharded() const { return shards.size() > 1; }
};

// Fills files one after another in the given order, each up to `max_bytes`. A tensor that is larger
// than that gets a file of its own, at once.
ShardPlan split_into_shards(std::span<const TensorToPlace> tensors, std::uint64_t max_bytes,
                            const ShardNaming& naming = {});

}  // namespace accelerant::format
