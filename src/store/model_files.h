// Finds the files of a saved model by path: one file, an index, or a folder that holds either.
// Without torch.
//
//   for (const auto& file : open_model("llama")) {
//     for (const WeightTensor& tensor : file->tensors()) file->for_each_piece(tensor, use);
//   }
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/model_checksums.h"
#include "store/weight_file.h"

namespace accelerant::checkpoint {

using WeightFiles = std::vector<std::unique_ptr<WeightFile>>;

// Opens all files and checks that they match the index. If a folder holds a new model that was
// complete before a crash, opens the files of that one (see model_folder.h). Throws Error if the
// path is not a model.
WeightFiles open_model(const std::string& path);

// When the files of a model are compared with their checksums.
enum class Compare {
  before_opening,  // all of them before they are returned, with one more pass over every byte
  while_reading    // what can be: see open_weight_file(); call check_rest() of each file at the end
};

// The same for a model whose files are compared with their checksums, if it has any (see
// model_checksums.h), with at most `threads` threads. Throws Error for a damaged file. If another
// process replaces the model meanwhile, opens the new one; never files of both.
WeightFiles open_checked_model(const std::string& path, int threads,
                               Compare when = Compare::before_opening);

// Opens one file and compares it while it is read, if the list in its folder names it.
std::unique_ptr<WeightFile> open_checked_file(const std::string& path, int threads);

// The model's list of checksums; empty if it has none. Throws Error if the list is damaged.
std::optional<ModelChecksums> checksums_of_model(const std::string& folder);

// A tensor, and the file that holds it.
struct Place {
  const WeightFile* file = nullptr;
  const WeightTensor* tensor = nullptr;
  std::string stored_name = {};  // its name in the file
};

// Finds the tensors of a model. The files must outlive this object.
class TensorsByName {
 public:
  explicit TensorsByName(const WeightFiles& files);

  // The tensor with that name or that alias.
  std::optional<Place> find(const std::string& name) const;

  // All stored names, file by file, in the order in which reading is fastest.
  std::vector<std::string> names() const;

 private:
  const WeightFiles& files_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace accelerant::checkpoint
