// Writes a model to new files, with the same or other data types.
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
  // Of all floating-point tensors (F64, F32, F16, BF16). Default: unchanged.
  std::optional<format::DType> dtype = {};

  // Largest size of a file, in bytes. Default: no limit.
  std::uint64_t max_shard_bytes = UINT64_MAX;

  // Write safetensors, or else the format of torch.save. Default: true.
  bool safetensors = true;

  // Accept tensors of torch.save that repeat elements, and may be far larger than their file.
  // Default: false, which refuses them.
  bool allow_expanded = false;

  // Compare the input with its checksums, if it has any, and write checksums beside the files in a
  // folder. Default: true.
  bool checksums = true;
};

// Opens the model to be written. Compares it with its checksums and refuses expanded views, unless
// the options say otherwise.
checkpoint::WeightFiles open_input(const std::string& path, const OutputOptions& options);

struct WrittenModel {
  std::vector<std::string> files = {};  // names; an index is the last
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  // of all tensors

  // Tensors in which finite values became infinite, and how many values did.
  std::vector<std::pair<std::string, std::uint64_t>> overflows = {};
};

// Writes to a folder. A model in that folder is replaced once the new one is complete. `input` is
// the path that `model` was opened with. A UsageError, before anything is changed, if the folder is
// a checkpoint, or if it is the folder of the input and would lose something: precision, or another
// model.
WrittenModel write_model(const checkpoint::WeightFiles& model, const std::string& input,
                         const std::string& folder, const OutputOptions& options);

// Writes all tensors to one safetensors file, which appears once it is complete.
WrittenModel write_single_file(const checkpoint::WeightFiles& model, const std::string& path,
                               const OutputOptions& options);

// "Wrote 3 files (12 tensors, 1.2 GB) to FOLDER", and a warning for values that became infinite.
void show_written(const WrittenModel& written, const std::string& path);

}  // namespace accelerant::cli
