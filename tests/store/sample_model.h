// Models whose tensors all have one value, so that tests know which save a file is from.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "accelerant/format/safetensors.h"
#include "format/shard_index.h"
#include "store/file_writer.h"
#include "store/model_files.h"
#include "store/model_folder.h"

namespace sample_model {

using accelerant::checkpoint::FileWriter;
using accelerant::checkpoint::ModelChecksums;
using accelerant::checkpoint::ModelSave;
using accelerant::checkpoint::SumUp;
using accelerant::checkpoint::WeightFiles;
using accelerant::checkpoint::WeightTensor;

using Names = std::vector<std::string>;
inline const Names kOne = {"model.safetensors"};
inline const Names kTwo = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

struct Written {
  Names files = {};
  ModelChecksums sums = {};
};

// A model of these shards, each with a tensor of `value`; written as save_model does it.
inline Written write_files(const ModelSave& save, const Names& shards, unsigned char value) {
  namespace format = accelerant::format;
  Written written;
  format::ShardPlan plan;
  for (const std::string& shard : shards) {
    FileWriter file(save.new_file(shard), SumUp::blocks);
    const std::vector<std::byte> data(1000, std::byte{value});
    const std::string name = "of " + shard;
    format::SafetensorsWriter(
        {{.name = name, .dtype = format::DType::u8, .shape = {1000}, .data = data}})
        .write(file);
    written.sums[shard] = file.finish_blocks();
    written.files.push_back(shard);
    plan.shards.push_back({.file = shard, .tensors = {name}});
  }
  if (shards.size() > 1) {
    const std::string name = "model.safetensors.index.json";
    const std::string index = format::print_shard_index(format::index_of(plan));
    FileWriter file(save.new_file(name), SumUp::blocks);
    file.write(std::as_bytes(std::span(index)));
    written.sums[name] = file.finish_blocks();
    written.files.push_back(name);
  }
  return written;
}

inline void save(const std::string& folder, const Names& shards, unsigned char value,
                 bool with_sums = true) {
  ModelSave save(folder);
  const Written written = write_files(save, shards, value);
  save.commit(written.files, with_sums ? written.sums : ModelChecksums());
}

// The value in all tensors of the model; -1 if they differ.
inline int value_in(const WeightFiles& files) {
  int value = -2;
  for (const auto& file : files) {
    for (const WeightTensor& tensor : file->tensors()) {
      file->for_each_piece(tensor, [&](auto bytes) {
        for (const std::byte byte : bytes) {
          const int found = std::to_integer<int>(byte);
          value = value == -2 || value == found ? found : -1;
        }
      });
    }
  }
  return value;
}

}  // namespace sample_model
