// How much memory the parts of a model need.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerant/paging/device_map.h"
#include "paging/device_map/module_tree.h"

namespace accelerant::paging {

// Bytes by name, in the order in which Accelerate's dictionary has them, on which some of its
// results depend. A fraction of a byte comes from the type bool, which counts 1/8. Whole numbers up
// to 2^53 are exact.
class SizeTable {
 public:
  // To the tensor of that name and all modules around it.
  void add(const std::string& tensor, double bytes);

  // 0 for names that hold nothing.
  double of(const std::string& name) const;

  const std::vector<std::pair<std::string, double>>& entries() const { return entries_; }

 private:
  void add_to(const std::string& name, double bytes);

  std::vector<std::pair<std::string, double>> entries_ = {};
  std::unordered_map<std::string, std::size_t> index_ = {};
};

SizeTable size_table(const ModuleTree& model, const ModuleSizeOptions& options);

// What Accelerate's algorithms work on: a module, or a tensor that no module in the list holds.
struct Part {
  std::string name = {};
  const ModuleTree* module = nullptr;  // null for a tensor
};

// Parameters, children, and (of the model itself only) buffers.
std::vector<Part> parts_of_model(const ModuleTree& model);
std::vector<Part> parts_of_module(const Part& part);

struct Layers {
  double bytes = 0;
  std::vector<std::string> names = {};
};

Layers largest_layers(const std::vector<Part>& parts, const SizeTable& sizes,
                      const std::vector<std::string>& no_split);

// The names of each tied parameter, sorted; in the order of the parameters.
std::vector<std::vector<std::string>> tied_groups(const ModuleTree& model);

// All parameters and buffers with their full names, also those that occur twice.
std::vector<std::string> tensor_names(const ModuleTree& model);

}  // namespace accelerant::paging
