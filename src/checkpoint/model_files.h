// The files of a saved model, found by a path: one file, an index, or a folder that holds either.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace accelerant::checkpoint {

// A tensor, and the file that holds it.
struct Place {
  TensorFile* file = nullptr;
  const StoredTensor* tensor = nullptr;
};

class ModelFiles {
 public:
  // Opens all files and checks that they are what the index says. Throws Error otherwise.
  static ModelFiles open(const std::string& path);

  // The tensor of that name, or the one that has it as another name.
  std::optional<Place> find(const std::string& name) const;

  // The names of all stored tensors, file by file in the order in which reading is fastest.
  std::vector<std::string> names() const;

 private:
  void add(std::unique_ptr<TensorFile> file);

  std::vector<std::unique_ptr<TensorFile>> files_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace accelerant::checkpoint
