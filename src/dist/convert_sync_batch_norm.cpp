#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/dist/sync_batch_norm.h"
#include "core/texts.h"

namespace accelerant::dist {
namespace {

using torch::nn::Module;

bool is_batch_norm(const Module& module) {
  return module.as<torch::nn::BatchNorm1d>() || module.as<torch::nn::BatchNorm2d>() ||
         module.as<torch::nn::BatchNorm3d>();
}

bool is_container(const Module& module) {
  return module.as<torch::nn::Sequential>() || module.as<torch::nn::ModuleList>() ||
         module.as<torch::nn::ModuleDict>();
}

void find_unreachable(const Module& parent, const std::string& prefix,
                      std::vector<std::string>& names) {
  for (const auto& child : parent.named_children()) {
    const std::string name = prefix + child.key();
    if (is_batch_norm(*child.value()) && !is_container(parent)) names.push_back(name);
    find_unreachable(*child.value(), name + '.', names);
  }
}

class Converter {
 public:
  explicit Converter(const std::shared_ptr<World>& world) : world_(world) {}

  void convert_below(Module& parent) {
    for (const auto& child : parent.named_children()) {
      if (!is_batch_norm(*child.value())) {
        convert_below(*child.value());
        continue;
      }
      const auto replacement = replacement_of(child.value());
      put(parent, child.value(), replacement);
      parent.replace_module(child.key(), replacement);
    }
  }

  int64_t replaced() const { return static_cast<int64_t>(replacements_.size()); }

 private:
  // A module that occurs twice still occurs twice afterwards.
  std::shared_ptr<SyncBatchNormImpl> replacement_of(const std::shared_ptr<Module>& original) {
    auto& replacement = replacements_[original];
    if (!replacement) {
      if (const auto* norm1d = original->as<torch::nn::BatchNorm1d>()) {
        replacement = SyncBatchNormImpl::sharing(*norm1d, world_);
      } else if (const auto* norm2d = original->as<torch::nn::BatchNorm2d>()) {
        replacement = SyncBatchNormImpl::sharing(*norm2d, world_);
      } else {
        replacement = SyncBatchNormImpl::sharing(*original->as<torch::nn::BatchNorm3d>(), world_);
      }
    }
    return replacement;
  }

  // Containers have their own list beside the registered children, and that is the list they call.
  static void put(Module& parent, const std::shared_ptr<Module>& original,
                  const std::shared_ptr<SyncBatchNormImpl>& replacement) {
    if (auto* sequential = parent.as<torch::nn::Sequential>()) {
      for (auto& module : *sequential) {
        if (module.ptr() == original) module = torch::nn::AnyModule(replacement);
      }
    } else if (auto* list = parent.as<torch::nn::ModuleList>()) {
      for (auto& module : *list) {
        if (module == original) module = replacement;
      }
    } else if (auto* dict = parent.as<torch::nn::ModuleDict>()) {
      for (auto& item : *dict) {
        if (item.value() == original) item.value() = replacement;
      }
    }
  }

  const std::shared_ptr<World>& world_;
  std::unordered_map<std::shared_ptr<Module>, std::shared_ptr<SyncBatchNormImpl>> replacements_;
};

}  // namespace

int64_t connect_sync_batch_norms(Module& module, const std::shared_ptr<World>& world) {
  int64_t found = 0;
  module.apply([&](Module& part) {
    if (auto* norm = part.as<SyncBatchNorm>()) {
      norm->set_world(world);
      ++found;
    }
  });
  return found;
}

int64_t convert_sync_batchnorm(Module& module, const std::shared_ptr<World>& world) {
  std::vector<std::string> unreachable;
  if (is_batch_norm(module)) unreachable.push_back("the module itself");
  find_unreachable(module, "", unreachable);
  if (!unreachable.empty()) {
    throw Error(ErrorDetails{
        .problem = "convert_sync_batchnorm cannot replace a BatchNorm that is a typed member",
        .expected = "BatchNorm modules only inside Sequential, ModuleList and ModuleDict",
        .got = list_text(unreachable),
        .hint =
            "declare it as accelerant::dist::SyncBatchNorm; with one process it does the same"});
  }
  Converter converter(world);
  converter.convert_below(module);
  connect_sync_batch_norms(module, world);
  return converter.replaced();
}

}  // namespace accelerant::dist
