// The modules of a model as plain data: what device maps are computed from.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerant::paging {

struct TreeTensor {
  std::string name = {};  // within its module
  double numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::size_t identity = 0;  // equal for tied tensors
};

struct ModuleTree {
  std::string name = {};   // within its parent
  std::string class_name;  // as C++ writes it: "torch::nn::LinearImpl"
  std::vector<TreeTensor> parameters = {};
  std::vector<TreeTensor> buffers = {};
  std::vector<ModuleTree> children = {};

  // The same object is a child of this parent under an earlier name. Python's named_children()
  // leaves it out.
  bool is_repeated = false;
};

ModuleTree tree_of(const torch::nn::Module& module);

// Children without repeated ones, with full names.
using NamedModule = std::pair<std::string, const ModuleTree*>;
std::vector<NamedModule> children_of(const ModuleTree& module, const std::string& name);

// "a.b"; or "b" below the model itself, whose name is "".
std::string below(const std::string& parent, const std::string& name);

// Whether `wanted` means the class: "Linear", "LinearImpl", "nn::Linear" and so on mean
// "torch::nn::LinearImpl", and "Block" means "Block<float>".
bool is_class(std::string_view class_name, std::string_view wanted);
bool is_any_class(std::string_view class_name, const std::vector<std::string>& wanted);

}  // namespace accelerant::paging
