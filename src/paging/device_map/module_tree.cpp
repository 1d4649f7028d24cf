#include "paging/device_map/module_tree.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace accelerant::paging {
namespace {

// What makes two tensors one: the object, or a view of the same memory.
class Identities {
 public:
  std::size_t of(const at::Tensor& tensor) {
    const auto object = objects_.try_emplace(tensor.unsafeGetTensorImpl(), next_);
    if (!object.second) return object.first->second;
    if (tensor.has_storage() && tensor.numel() > 0) {
      const View view(tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(),
                      tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec());
      object.first->second = views_.try_emplace(view, next_).first->second;
    }
    if (object.first->second == next_) ++next_;
    return object.first->second;
  }

 private:
  using View =
      std::tuple<const void*, c10::ScalarType, int64_t, std::vector<int64_t>, std::vector<int64_t>>;

  std::map<const void*, std::size_t> objects_ = {};
  std::map<View, std::size_t> views_ = {};
  std::size_t next_ = 0;
};

TreeTensor tree_tensor(const std::string& name, const at::Tensor& tensor, Identities& identities) {
  return {.name = name,
          .numel = static_cast<double>(tensor.numel()),
          .dtype = tensor.scalar_type(),
          .identity = identities.of(tensor)};
}

ModuleTree build_tree(const torch::nn::Module& module, const std::string& name,
                      Identities& identities) {
  ModuleTree tree{.name = name, .class_name = module.name()};
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tree.parameters.push_back(tree_tensor(item.key(), item.value(), identities));
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (!item.value().defined()) continue;
    tree.buffers.push_back(tree_tensor(item.key(), item.value(), identities));
  }
  std::set<const torch::nn::Module*> known;
  for (const auto& child : module.named_children()) {
    if (child.value() == nullptr) continue;
    tree.children.push_back(build_tree(*child.value(), child.key(), identities));
    tree.children.back().is_repeated = !known.insert(child.value().get()).second;
  }
  return tree;
}

bool ends_with_name(std::string_view class_name, std::string_view wanted) {
  if (!class_name.ends_with(wanted)) return false;
  const std::string_view before = class_name.substr(0, class_name.size() - wanted.size());
  return before.empty() || before.ends_with("::");
}

}  // namespace

ModuleTree tree_of(const torch::nn::Module& module) {
  Identities identities;
  return build_tree(module, "", identities);
}

std::string below(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

std::vector<NamedModule> children_of(const ModuleTree& module, const std::string& name) {
  std::vector<NamedModule> children;
  for (const ModuleTree& child : module.children) {
    if (!child.is_repeated) children.emplace_back(below(name, child.name), &child);
  }
  return children;
}

bool is_class(std::string_view class_name, std::string_view wanted) {
  const std::string_view without_arguments = class_name.substr(0, class_name.find('<'));
  for (std::string_view name : {class_name, without_arguments}) {
    if (ends_with_name(name, wanted)) return true;
    if (name.ends_with("Impl") && ends_with_name(name.substr(0, name.size() - 4), wanted)) {
      return true;
    }
  }
  return false;
}

bool is_any_class(std::string_view class_name, const std::vector<std::string>& wanted) {
  return std::ranges::any_of(wanted,
                             [&](const std::string& each) { return is_class(class_name, each); });
}

}  // namespace accelerant::paging
