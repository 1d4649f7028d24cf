#include "paging/device_map/module_sizes.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <unordered_set>

namespace accelerant::paging {
namespace {

using Visit = std::function<void(const std::string& name, const TreeTensor& tensor)>;

void for_each_tensor(const ModuleTree& module, const std::string& name,
                     std::vector<TreeTensor> ModuleTree::*kind, const Visit& visit) {
  for (const TreeTensor& tensor : module.*kind) visit(below(name, tensor.name), tensor);
  for (const ModuleTree& child : module.children) {
    for_each_tensor(child, below(name, child.name), kind, visit);
  }
}

double bytes_per_element(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Bool ? 0.125 : static_cast<double>(c10::elementSize(dtype));
}

double loaded_bytes(const std::string& name, const TreeTensor& tensor,
                    const ModuleSizeOptions& options) {
  const auto special = options.special_dtypes.find(name);
  if (special != options.special_dtypes.end()) {
    return tensor.numel * bytes_per_element(special->second);
  }
  const double own = bytes_per_element(tensor.dtype);
  if (!options.dtype || c10::isIntegralType(tensor.dtype, /*includeBool=*/true)) {
    return tensor.numel * own;
  }
  return tensor.numel * std::min(bytes_per_element(*options.dtype), own);
}

int64_t whole_bytes(double bytes) { return static_cast<int64_t>(std::ceil(bytes)); }

void collect_names(const ModuleTree& module, const std::string& name,
                   std::vector<std::string>& names) {
  for (const TreeTensor& tensor : module.parameters) names.push_back(below(name, tensor.name));
  for (const TreeTensor& tensor : module.buffers) names.push_back(below(name, tensor.name));
  for (const ModuleTree& child : module.children) {
    collect_names(child, below(name, child.name), names);
  }
}

}  // namespace

// --- Sizes ---------------------------------------------------------------------------------------

void SizeTable::add_to(const std::string& name, double bytes) {
  const auto [found, is_new] = index_.try_emplace(name, entries_.size());
  if (is_new) entries_.emplace_back(name, 0.0);
  entries_[found->second].second += bytes;
}

void SizeTable::add(const std::string& tensor, double bytes) {
  add_to("", bytes);
  for (std::size_t dot = tensor.find('.'); dot != std::string::npos;
       dot = tensor.find('.', dot + 1)) {
    add_to(tensor.substr(0, dot), bytes);
  }
  add_to(tensor, bytes);
}

double SizeTable::of(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? 0 : entries_[found->second].second;
}

SizeTable size_table(const ModuleTree& model, const ModuleSizeOptions& options) {
  SizeTable sizes;
  const auto add_each = [&](std::vector<TreeTensor> ModuleTree::*kind) {
    std::unordered_set<std::size_t> known;  // tied tensors count once
    for_each_tensor(model, "", kind, [&](const std::string& name, const TreeTensor& tensor) {
      if (known.insert(tensor.identity).second) {
        sizes.add(name, loaded_bytes(name, tensor, options));
      }
    });
  };
  if (!options.buffers_only) add_each(&ModuleTree::parameters);
  add_each(&ModuleTree::buffers);
  return sizes;
}

// --- Parts and layers ----------------------------------------------------------------------------

std::vector<Part> parts_of_module(const Part& part) {
  std::vector<Part> parts;
  for (const TreeTensor& tensor : part.module->parameters) {
    parts.push_back({.name = below(part.name, tensor.name)});
  }
  for (auto& [name, child] : children_of(*part.module, part.name)) {
    parts.push_back({.name = name, .module = child});
  }
  return parts;
}

std::vector<Part> parts_of_model(const ModuleTree& model) {
  std::vector<Part> parts = parts_of_module({.name = "", .module = &model});
  for (const TreeTensor& tensor : model.buffers) parts.push_back({.name = tensor.name});
  return parts;
}

Layers largest_layers(const std::vector<Part>& parts, const SizeTable& sizes,
                      const std::vector<std::string>& no_split) {
  Layers largest;
  const std::function<void(const Part&)> visit = [&](const Part& part) {
    std::vector<NamedModule> children;
    if (part.module != nullptr) children = children_of(*part.module, part.name);
    if (children.empty() || is_any_class(part.module->class_name, no_split)) {
      const double bytes = sizes.of(part.name);
      if (bytes > largest.bytes) largest = {.bytes = bytes};
      if (bytes == largest.bytes) largest.names.push_back(part.name);
      return;
    }
    for (auto& [name, child] : children) visit({.name = name, .module = child});
  };
  for (const Part& part : parts) visit(part);
  return largest;
}

// --- Names ---------------------------------------------------------------------------------------

std::vector<std::vector<std::string>> tied_groups(const ModuleTree& model) {
  std::vector<std::vector<std::string>> groups;
  std::unordered_map<std::size_t, std::size_t> known;
  for_each_tensor(model, "", &ModuleTree::parameters,
                  [&](const std::string& name, const TreeTensor& tensor) {
                    const auto [group, is_new] = known.try_emplace(tensor.identity, groups.size());
                    if (is_new) groups.emplace_back();
                    groups[group->second].push_back(name);
                  });
  std::erase_if(groups, [](const auto& names) { return names.size() < 2; });
  for (auto& names : groups) std::ranges::sort(names);
  return groups;
}

std::vector<std::string> tensor_names(const ModuleTree& model) {
  std::vector<std::string> names;
  collect_names(model, "", names);
  return names;
}

}  // namespace accelerant::paging

// --- The public functions ------------------------------------------------------------------------

namespace accelerant {

std::map<std::string, int64_t> compute_module_sizes(const ModelArgument& model,
                                                    const ModuleSizeOptions& options) {
  std::map<std::string, int64_t> result = {{"", 0}};
  const paging::SizeTable sizes = paging::size_table(paging::tree_of(model.module()), options);
  for (const auto& [name, bytes] : sizes.entries()) result[name] = paging::whole_bytes(bytes);
  return result;
}

int64_t compute_module_total_buffer_size(const ModelArgument& model,
                                         const ModuleSizeOptions& options) {
  ModuleSizeOptions buffers = options;
  buffers.buffers_only = true;
  return compute_module_sizes(model, buffers).at("");
}

LargestLayers get_max_layer_size(const ModelArgument& model,
                                 const std::vector<std::string>& no_split_module_classes,
                                 const ModuleSizeOptions& options) {
  const paging::ModuleTree tree = paging::tree_of(model.module());
  const paging::Layers layers = paging::largest_layers(
      paging::parts_of_model(tree), paging::size_table(tree, options), no_split_module_classes);
  return {.bytes = paging::whole_bytes(layers.bytes), .names = layers.names};
}

std::vector<std::vector<std::string>> find_tied_parameters(const ModelArgument& model) {
  return paging::tied_groups(paging::tree_of(model.module()));
}

}  // namespace accelerant
