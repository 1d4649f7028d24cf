// What is at a path: a file of tensors, a model or a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/model_files.h"
#include "store/verify.h"

namespace accelerant::cli {

struct InspectedFile {
  std::string name = {};                                      // in the folder
  std::uint64_t size = 0;                                     // of the file
  std::unique_ptr<checkpoint::WeightFile> content = nullptr;  // null for files of other kinds
  std::string problem = {};                                   // why it cannot be read
  bool in_model = false;                                      // counts in the totals
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;  // tied weights count once
  std::uint64_t bytes = 0;

  void add(const checkpoint::WeightTensor& tensor);
};

struct Inspection {
  std::string kind = {};  // "file", "model", "checkpoint" or "folder"
  std::vector<InspectedFile> files = {};
  std::optional<checkpoint::Verification> manifest = {};  // by sizes
  std::string model_problem = {};                         // why the model cannot be read
  Total total = {};                                       // of the model
  std::map<std::string, Total> by_dtype = {};

  // The part of the total that an optimizer trains. A file of tensors does not tell parameters from
  // buffers; only a checkpoint does, by the names in its optimizers. None: not known.
  std::optional<Total> trained = {};

  bool is_good() const { return model_problem.empty() && (!manifest || manifest->is_valid()); }
};

// A UsageError if nothing is at the path, an Error if it is none of these.
Inspection inspect(const std::string& path);

// Whether a file of that name may hold tensors.
bool is_tensor_file_name(const std::string& name);

}  // namespace accelerant::cli
