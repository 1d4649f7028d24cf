// Writes a model anew: in other files, with other types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"
#include "store/model_files.h"

namespace accelerant::cli {

struct OutputOptions {
  std::optional<format::DType> dtype =
      {};  // of floating-point tensors (F64, F32, F16, BF16); none: their own
  std::uint64_t max_shard_bytes = UINT64_MAX;
  bool safetensors = true;  // false: torch.save; a file at a time is then in memory
};

struct WrittenModel {
  std::vector<std::string> files = {};  // an index last
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  // of all tensors

  // Tensors of which finite values became infinite, and how many.
  std::vector<std::pair<std::string, std::uint64_t>> overflows = {};
};

// To a folder, where it takes the place of the model that is there when it is whole. `input` is the
// path that `model` was opened by. A UsageError, before anything is done, if the folder is a
// checkpoint, or if the folder of the input would lose by it: values that do not fit the new type,
// or another model.
WrittenModel write_model(const checkpoint::WeightFiles& model, const std::string& input,
                         const std::string& folder, const OutputOptions& options);

// All tensors as one safetensors file, which appears when it is whole.
WrittenModel write_single_file(const checkpoint::WeightFiles& model, const std::string& path);

// "Wrote 3 files, 12 tensors, 1.2 GB, to folder"; and on stderr what became infinite.
void show_written(const char* command, const WrittenModel& written, const std::string& path);

}  // namespace accelerant::cli
