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

// The number of bytes in a text like "10GB", "1.5 MB" or "5GiB", for options that limit sizes. KB,
// MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB powers of 1024; upper and lower case are
// the same, and "b" is a byte too, as in huggingface_hub. A unit is needed. Fractions of a byte are
// dropped.
std::uint64_t parse_byte_size(std::string_view text);

// Names of files: "model.safetensors" alone, else "model-00001-of-00003.safetensors".
struct ShardNaming {
  std::string stem = "model";              // what stands in front of the number
  std::string extension = ".safetensors";  // what stands behind it

  // Of shard `number`, counted from 1.
  std::string file(std::uint64_t number, std::uint64_t count) const;

  // Of the index.
  std::string index_file() const { return stem + extension + ".index.json"; }
};

struct TensorToPlace {
  std::string name = {};    // each once
  std::uint64_t bytes = 0;  // of its data in a file

  // Tensors of the same number share their memory: they stay in one file, and their bytes count
  // once, as those of the first of them. Default: shares with none.
  std::optional<std::uint64_t> storage = {};
};

struct Shard {
  std::string file = {};
  std::vector<std::string> tensors = {};
};

struct ShardPlan {
  std::vector<Shard> shards = {};  // none for no tensors
  std::uint64_t total_size = 0;    // bytes of all tensors; shared memory counts once

  bool is_sharded() const { return shards.size() > 1; }
};

// Fills files one after the other in the given order, each up to `max_bytes`. A tensor that is
// larger by itself gets a file by itself, at once.
ShardPlan split_into_shards(std::span<const TensorToPlace> tensors, std::uint64_t max_bytes,
                            const ShardNaming& naming = {});

}  // namespace accelerant::format
