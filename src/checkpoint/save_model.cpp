#include "accelerant/checkpoint/models.h"

#include <span>
#include <unordered_map>

#include "accelerant/core/error.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_writer.h"
#include "format/shard_index.h"
#include "format/shard_split.h"
#include "store/file_writer.h"
#include "store/model_folder.h"
#include "tensor/module_state.h"

namespace accelerant {
namespace {

using checkpoint::FileWriter;

uint64_t stored_bytes(const at::Tensor& tensor, const SaveModelOptions& options) {
  return static_cast<uint64_t>(tensor.numel()) *
         c10::elementSize(checkpoint::stored_type(tensor, options.dtype));
}

// Plans which tensors go into which file. Which tensors share memory matters if all names are
// stored.
format::ShardPlan plan_shards(const StateDict& stored,
                              const std::map<std::string, std::string>& aliases,
                              const format::ShardNaming& naming, const SaveModelOptions& options) {
  std::unordered_map<std::string, uint64_t> storages;  // by names that have or are aliases
  for (const auto& [alias, kept] : aliases) {
    const uint64_t number = storages.try_emplace(kept, storages.size()).first->second;
    storages.emplace(alias, number);
  }
  std::vector<format::TensorToPlace> tensors;
  for (const auto& item : stored) {
    const auto storage = storages.find(item.key());
    tensors.push_back(
        {.name = item.key(),
         .bytes = stored_bytes(item.value(), options),
         .storage = storage == storages.end() ? std::nullopt : std::optional(storage->second)});
  }
  auto plan =
      format::split_into_shards(tensors, format::parse_byte_size(options.max_shard_size), naming);
  if (plan.shards.empty()) plan.shards.push_back({.file = naming.file(1, 1)});
  return plan;
}

SavedModel write_files(const checkpoint::ModelSave& save, const StateDict& state,
                       const SaveModelOptions& options, checkpoint::ModelChecksums& sums) {
  const auto distinct = checkpoint::distinct_tensors(state);
  const format::ShardNaming naming =
      options.safe_serialization
          ? format::ShardNaming{}
          : format::ShardNaming{.stem = "pytorch_model", .extension = ".bin"};
  // Python's own format can express that two names share their memory.
  const StateDict& stored = options.safe_serialization ? distinct.kept : state;
  const auto plan = plan_shards(stored, distinct.aliases, naming, options);
  SavedModel saved{.total_size = plan.total_size};
  const auto sum_up = options.checksums ? checkpoint::SumUp::blocks : checkpoint::SumUp::no;
  const auto finish = [&](FileWriter& file, const std::string& name) {
    const checkpoint::FileChecksums found = file.finish_blocks();
    if (options.checksums) sums[name] = found;
    saved.files.push_back(name);
  };
  for (const format::Shard& shard : plan.shards) {
    FileWriter file(save.new_file(shard.file), sum_up);
    const auto write =
        options.safe_serialization ? checkpoint::write_safetensors : checkpoint::write_archive;
    write(shard.tensors, stored, distinct.aliases, options.dtype, file);
    finish(file, shard.file);
  }
  if (plan.is_sharded()) {
    const std::string index = format::print_shard_index(format::index_of(plan));
    FileWriter file(save.new_file(naming.index_file()), sum_up);
    file.write(std::as_bytes(std::span(index)));
    finish(file, naming.index_file());
  }
  return saved;
}

}  // namespace

SavedModel save_model(const StateDict& state, const std::string& folder,
                      const SaveModelOptions& options) {
  format::parse_byte_size(options.max_shard_size);  // throws before anything happens
  for (const auto& item : state)
    checkpoint::require_storable(item.key(), item.value(), options.dtype);
  checkpoint::ModelSave save(folder);
  checkpoint::ModelChecksums sums;
  SavedModel saved = write_files(save, state, options, sums);
  save.commit(saved.files, sums);
  return saved;
}

SavedModel save_model(const torch::nn::Module& module, const std::string& folder,
                      const SaveModelOptions& options) {
  return save_model(state_of(module), folder, options);
}

}  // namespace accelerant
