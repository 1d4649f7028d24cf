#include "paging/offload/offloaded_model.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "paging/residency.h"
#include "tensor/storage_move.h"

namespace accelerant::paging {
namespace {

// What a parameter carries. Aliases of it, such as results of detach(), carry it too: their memory
// is the model's.
struct Owner final : c10::BackendMeta {
  explicit Owner(std::shared_ptr<OffloadedModel> owned) : model(std::move(owned)) {}

  std::shared_ptr<OffloadedModel> model;
};

const Owner* owner_of(const at::Tensor& tensor) {
  return tensor.defined() ? dynamic_cast<Owner*>(tensor.unsafeGetTensorImpl()->get_backend_meta())
                          : nullptr;
}

at::Tensor locked(const WeakTensor& tensor) {
  auto held = tensor.lock();
  return held ? at::Tensor(std::move(held)) : at::Tensor();
}

}  // namespace

std::shared_ptr<OffloadedModel> OffloadedModel::attach(OffloadPlan plan) {
  std::shared_ptr<OffloadedModel> model(new OffloadedModel());
  StorageMove move(plan.pager.device);
  std::vector<at::Tensor> to_move;
  std::vector<at::Tensor> all;
  for (const NamedParameter& other : plan.others) {
    const at::Tensor& tensor = other.parameter;
    all.push_back(tensor);
    if (!StorageMove::can_move(tensor) || is_on(tensor, plan.pager.device)) continue;
    if (std::ranges::any_of(to_move, [&](const auto& known) { return known.is_same(tensor); })) {
      continue;
    }
    move.prepare(tensor);
    to_move.push_back(tensor);
  }
  for (const UnitPlan& unit : plan.units) {
    for (const NamedParameter& named : unit.parameters) {
      all.push_back(named.parameter);
      model->paged_.push_back({named.name, WeakTensor(named.parameter.getIntrusivePtr())});
    }
  }
  model->pager_ = std::make_unique<Pager>(std::move(plan.units), plan.pager);
  for (const at::Tensor& tensor : to_move) {
    model->moved_.push_back({WeakTensor(tensor.getIntrusivePtr()), tensor.device()});
    move.move(tensor);
  }
  model->sign(all);
  return model;
}

void OffloadedModel::sign(const std::vector<at::Tensor>& tensors) {
  const auto owner = c10::make_intrusive<Owner>(shared_from_this());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    tensor.unsafeGetTensorImpl()->set_backend_meta(owner);
    signed_.emplace_back(tensor.getIntrusivePtr());
  }
}

std::vector<std::shared_ptr<OffloadedModel>> OffloadedModel::of(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<OffloadedModel>> models;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const Owner* const owner = owner_of(tensor);
      if (owner == nullptr || !owner->model->pager_) continue;
      if (std::ranges::find(models, owner->model) == models.end()) models.push_back(owner->model);
    }
  };
  add(module.parameters());
  add(module.buffers());
  return models;
}

void OffloadedModel::verify() const {
  std::vector<std::string> left;
  for (const Paged& paged : paged_) {
    const at::Tensor tensor = locked(paged.tensor);
    if (tensor.defined() && !is_paged(tensor)) left.push_back(paged.name);
  }
  if (!left.empty()) {
    throw Error(ErrorDetails{
        .problem = "Weights of an offloaded model do not come and go any more",
        .expected = "weights that keep their memory's place and type",
        .got = "new memory for " + list_text(left, 5),
        .hint =
            "the model was moved with Module::to(), or a weight was replaced by set_data(): call "
            "undo_offload() before that, and offload the model again afterwards"});
  }
  pager_->verify();
}

void OffloadedModel::undo(std::optional<c10::Device> device) {
  if (!pager_) return;
  const std::shared_ptr<OffloadedModel> self = shared_from_this();
  pager_->detach(device);
  // Tensors of one origin at a time, so that those that share a storage do so afterwards.
  std::map<std::string, std::vector<at::Tensor>> by_origin;
  for (const Moved& moved : moved_) {
    const at::Tensor tensor = locked(moved.tensor);
    c10::Device origin = moved.origin;
    if (origin.is_meta()) origin = c10::Device(c10::kCPU);
    if (tensor.defined()) by_origin[device.value_or(origin).str()].push_back(tensor);
  }
  for (const auto& [target, tensors] : by_origin) {
    StorageMove move{c10::Device(target)};
    for (const at::Tensor& tensor : tensors) move.prepare(tensor);
    for (const at::Tensor& tensor : tensors) {
      if (!is_on(tensor, c10::Device(target))) move.move(tensor);
    }
  }
  moved_.clear();
  paged_.clear();
  pager_.reset();
  for (const WeakTensor& weak : signed_) {
    const at::Tensor tensor = locked(weak);
    const Owner* const owner = owner_of(tensor);
    if (owner != nullptr && owner->model == self) {
      tensor.unsafeGetTensorImpl()->set_backend_meta(nullptr);
    }
  }
  signed_.clear();
}

void OffloadedModel::leave_device() {
  if (pager_ && is_used_.exchange(false, std::memory_order_relaxed)) pager_->evict_all();
}

}  // namespace accelerant::paging
