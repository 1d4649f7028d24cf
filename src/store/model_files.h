// The files of a saved model, found by a path: one file, an index, or a folder that holds either.
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

#include "store/weight_file.h"

namespace accelerant::checkpoint {

using WeightFiles = std::vector<std::unique_ptr<WeightFile>>;

// Opens all files and checks that they are what the index says. Of a folder in which a new model
// was complete before a crash, the files of that one (model_folder.h). Throws Error for what is no
// model.
WeightFiles open_model(const std::string& path);

// A tensor, and the file that holds it.
struct Place {
  const WeightFile* file = nullptr;
  const WeightTensor* tensor = nullptr;
  std::string stored_name = {};  // under which it was found in the file
};

// Finds the tensors of a model, whose files must stay.
class TensorsByName {
 public:
  explicit TensorsByName(const WeightFiles& files);

  // The tensor of that name, or the one that has it as another name.
  std::optional<Place> find(const std::string& name) const;

  // All names that are stored, file by file in the order in which reading is fastest.
  std::vector<std::string> names() const;

 private:
  const WeightFiles& files_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace accelerant::checkpoint
