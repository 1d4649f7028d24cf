#include "accelerant/checkpoint/save_model.h"

#include <c10/util/StringUtil.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/format/shard_index.h"
#include "accelerant/format/shard_split.h"
#include "accelerant/format/torch_archive.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors_output.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_dtype.h"
#include "core/files.h"
#include "tensor/module_state.h"

namespace accelerant {
namespace {

using checkpoint::FileWriter;
using checkpoint::stored_type;

uint64_t stored_bytes(const at::Tensor& tensor, const SaveModelOptions& options) {
  return static_cast<uint64_t>(tensor.numel()) *
         c10::elementSize(stored_type(tensor, options.dtype));
}

// The tensors that go into files; which of them share memory matters where all names are stored.
format::ShardPlan plan_shards(const StateDict& stored,
                              const std::map<std::string, std::string>& aliases,
                              const format::ShardNaming& naming, const SaveModelOptions& options) {
  std::unordered_map<std::string, uint64_t> storages;  // of names that have or are aliases
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

StateDict tensors_of(const format::Shard& shard, const StateDict& state) {
  StateDict tensors;
  for (const std::string& name : shard.tensors) tensors.insert(name, state[name]);
  return tensors;
}

void write_archive(const StateDict& tensors, const std::map<std::string, std::string>& aliases,
                   std::optional<c10::ScalarType> dtype, format::ByteSink& sink) {
  std::unordered_map<std::string, std::shared_ptr<const format::PlainStorage>> storages;
  format::PlainDict dict;
  dict.kind = format::PlainDictKind::ordered;
  for (const auto& item : tensors) {
    const std::string& name = item.key();
    const at::Tensor& tensor = item.value();
    const c10::ScalarType type = stored_type(tensor, dtype);
    const auto alias = aliases.find(name);
    auto& storage = storages[alias == aliases.end() ? name : alias->second];
    if (!storage) {
      const auto plain = std::make_shared<at::Tensor>(
          tensor.detach().resolve_conj().resolve_neg().to(type).cpu().contiguous());
      storage = std::make_shared<format::PlainStorage>(
          std::span(static_cast<const std::byte*>(plain->const_data_ptr()), plain->nbytes()),
          plain);
    }
    dict.set(name, format::PlainTensor::contiguous(
                       std::string(format::dtype_name(*checkpoint::format_dtype(type))),
                       tensor.sizes().vec(), storage));
  }
  format::write_torch_archive(std::move(dict), sink);
}

SavedModel write_files(const std::string& folder, const StateDict& state,
                       const SaveModelOptions& options) {
  const auto distinct = checkpoint::distinct_tensors(state);
  const format::ShardNaming naming =
      options.safe_serialization
          ? format::ShardNaming{}
          : format::ShardNaming{.stem = "pytorch_model", .extension = ".bin"};
  // Python's own format can say that two names share their memory.
  const StateDict& stored = options.safe_serialization ? distinct.kept : state;
  const auto plan = plan_shards(stored, distinct.aliases, naming, options);
  SavedModel saved{.total_size = plan.total_size};
  for (const format::Shard& shard : plan.shards) {
    FileWriter file(join_path(folder, shard.file));
    const auto write = options.safe_serialization ? checkpoint::write_safetensors : write_archive;
    write(tensors_of(shard, stored), distinct.aliases, options.dtype, file);
    file.finish();
    saved.files.push_back(shard.file);
  }
  if (plan.is_sharded()) {
    const std::string index = format::print_shard_index(format::index_of(plan));
    FileWriter file(join_path(folder, naming.index_file()));
    file.write(std::as_bytes(std::span(index)));
    file.finish();
    saved.files.push_back(naming.index_file());
  }
  return saved;
}

}  // namespace

SavedModel save_model(const StateDict& state, const std::string& folder,
                      const SaveModelOptions& options) {
  format::parse_byte_size(options.max_shard_size);  // an Error before anything happens
  for (const auto& item : state) {
    checkpoint::require_storable(item.key(), item.value(), options.dtype);
  }
  const std::string saving = checkpoint::begin_model(folder);
  SavedModel saved;
  try {
    saved = write_files(saving, state, options);
  } catch (...) {
    checkpoint::abandon_model(folder);
    throw;
  }
  checkpoint::commit_model(folder, saved.files);
  return saved;
}

SavedModel save_model(const torch::nn::Module& module, const std::string& folder,
                      const SaveModelOptions& options) {
  return save_model(state_of(module), folder, options);
}

}  // namespace accelerant
