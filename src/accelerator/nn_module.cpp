#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include "accelerant/dist/sync_batch_norm.h"
#include "accelerator/module_access.h"

namespace accelerant::detail {
namespace {

// In Python's order: a module's own parameters, its own buffers, then its children.
void collect_state(const torch::nn::Module& module, const std::string& prefix, StateDict& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    state.insert(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    state.insert(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    collect_state(*child.value(), prefix + child.key() + ".", state);
  }
}

class NnModule : public ModuleAccess {
 public:
  explicit NnModule(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  const void* identity() const override { return module_.get(); }
  void train(bool on) override { module_->train(on); }
  bool is_training() const override { return module_->is_training(); }
  void to(c10::Device device) override { module_->to(device); }
  void to(c10::ScalarType dtype) override { module_->to(dtype); }
  StateDict named_parameters() const override { return module_->named_parameters(); }
  StateDict named_buffers() const override { return module_->named_buffers(); }
  int64_t connect(const std::shared_ptr<dist::World>& world) override {
    return dist::connect_sync_batch_norms(*module_, world);
  }
  std::unordered_set<const c10::TensorImpl*> sparse_parameters() const override {
    std::unordered_set<const c10::TensorImpl*> sparse;
    for (const auto& module : module_->modules(/*include_self=*/false)) add_sparse(*module, sparse);
    add_sparse(*module_, sparse);
    return sparse;
  }
  StateDict state_dict() const override {
    StateDict state;
    collect_state(*module_, "", state);
    return state;
  }

 private:
  static void add_sparse(const torch::nn::Module& module,
                         std::unordered_set<const c10::TensorImpl*>& sparse) {
    if (const auto* embedding = module.as<torch::nn::Embedding>()) {
      if (embedding->options.sparse()) sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = module.as<torch::nn::EmbeddingBag>()) {
      if (bag->options.sparse()) sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

std::unique_ptr<ModuleAccess> access_to(std::shared_ptr<torch::nn::Module> module) {
  return std::make_unique<NnModule>(std::move(module));
}

}  // namespace accelerant::detail
