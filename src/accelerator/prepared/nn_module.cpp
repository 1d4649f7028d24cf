#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <typeinfo>
#include <utility>

#include "accelerant/dist/sync_batch_norm.h"
#include "accelerator/fingerprint.h"
#include "accelerator/prepared/module_access.h"
#include "tensor/module_state.h"

namespace accelerant::detail {
namespace {

class NnModule : public ModuleAccess {
 public:
  explicit NnModule(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  const void* identity() const override { return module_.get(); }
  void train(bool on) override { module_->train(on); }
  bool is_training() const override { return module_->is_training(); }
  uint64_t modes() const override {
    std::size_t modes = 0;
    std::as_const(*module_).apply(
        [&](const torch::nn::Module& part) { mix(modes, part.is_training() ? 1 : 2); });
    return modes;
  }
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
  std::string advice() const override { return slow_modules_advice(*module_); }
  StateDict state_dict() const override { return state_of(*module_); }
  const torch::nn::Module* nn_module() const override { return module_.get(); }

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

std::string slow_modules_advice(const torch::nn::Module& module) {
  constexpr std::size_t shown = 3;
  std::size_t count = 0;
  std::string names;
  // Not the module itself: that would need a shared pointer, which a module on the stack lacks.
  const auto inside = module.named_modules("", /*include_self=*/false);
  for (const auto& item : inside) {
    const torch::nn::Module& part = *item.value();
    // The replacement derives from LinearImpl, so compare exact types.
    if (typeid(part) != typeid(torch::nn::LinearImpl)) continue;
    if (!static_cast<const torch::nn::LinearImpl&>(part).bias.defined()) continue;
    if (count++ < shown) names += (names.empty() ? "" : ", ") + item.key();
  }
  if (count == 0) return "";
  if (count > shown) names += c10::str(" and ", count - shown, " more");
  return c10::str(
      names,
      ": torch::nn::Linear adds its bias in a second pass unless its input has two "
      "dimensions; use accelerant::nn::Linear (accelerant/nn/layers.h), which does not");
}

std::unique_ptr<ModuleAccess> access_to(std::shared_ptr<torch::nn::Module> module) {
  return std::make_unique<NnModule>(std::move(module));
}

}  // namespace accelerant::detail
