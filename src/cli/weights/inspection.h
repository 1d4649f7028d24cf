// What is at a path: a file of tensors, a model, a checkpoint.
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
  std::unique_ptr<checkpoint::WeightFile> content = nullptr;  // none for files of other kinds
  std::string problem = {};  // why it cannot be read, where that was tried
  bool in_model = false;     // counts in the totals
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;  // elements; tied weights count once
  std::uint64_t bytes = 0;

  void add(const checkpoint::WeightTensor& tensor);
};

struct Inspection {
  std::string kind = {};  // "file", "model", "checkpoint" or "folder"
  std::vector<InspectedFile> files = {};
  std::optional<checkpoint::Verification> manifest = {};  // by sizes
  std::string model_problem = {};  // why there is a model that cannot be read
  Total total = {};                // of the model
  std::map<std::string, Total> by_dtype = {};

  bool is_good() const { return model_problem.empty() && (!manifest || manifest->is_valid()); }
};

// A UsageError where there is nothing, an Error where it is nothing of these.
Inspection inspect(const std::string& path);

// Whether a file of that name may hold tensors.
bool is_tensor_file_name(const std::string& name);

}  // namespace accelerant::cli
