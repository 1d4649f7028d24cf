#include "paging/offload/offloaded_model.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "paging/device_map/presence.h"
#include "paging/offload/files.h"
#include "paging/residency.h"
#include "tensor/storage_move.h"

namespace accelerant::paging {
namespace {

using Hook = torch::autograd::PostAccumulateGradHook;

// How a parameter owns its model. Of all that is attached to a tensor, only what belongs to autograd
// goes when the tensor does, even if weak pointers to it remain, and stays when set_data() replaces
// everything else. One that is there already runs first.
class Owner final : public Hook {
 public:
  Owner(std::shared_ptr<OffloadedModel> model, std::unique_ptr<Hook> first)
      : model_(std::move(model)), first_(std::move(first)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (first_) (*first_)(parameter);
  }

  bool owns(const OffloadedModel* model) const { return model_.get() == model; }
  std::unique_ptr<Hook> take_first() { return std::move(first_); }

 private:
  std::shared_ptr<OffloadedModel> model_;
  std::unique_ptr<Hook> first_;
};

void add_owner(const at::Tensor& tensor, const std::shared_ptr<OffloadedModel>& model) {
  std::unique_ptr<Hook> first;
  if (torch::autograd::impl::get_autograd_meta(tensor) != nullptr) {
    first = std::move(torch::autograd::impl::post_acc_grad_hooks(tensor));
  }
  torch::autograd::impl::set_post_acc_grad_hooks(tensor,
                                                 std::make_unique<Owner>(model, std::move(first)));
}

void remove_owner(const at::Tensor& tensor, const OffloadedModel* model) {
  if (torch::autograd::impl::get_autograd_meta(tensor) == nullptr) return;
  std::unique_ptr<Hook>& hook = torch::autograd::impl::post_acc_grad_hooks(tensor);
  auto* const own = dynamic_cast<Owner*>(hook.get());
  // Under a hook that came later it stays, and keeps what little an undone model has.
  if (own != nullptr && own->owns(model)) hook = own->take_first();
}

// The models of tensors, and whether they came and went.
class Directory {
 public:
  struct Entry {
    WeakTensor tensor;  // keeps the address from being used again
    std::weak_ptr<OffloadedModel> model;
    bool wanders;
  };

  static Directory& instance() {
    static auto* const directory = new Directory();  // never destroyed: parameters may be static
    return *directory;
  }

  void add(const at::Tensor& tensor, const std::shared_ptr<OffloadedModel>& model, bool wanders) {
    const std::lock_guard lock(mutex_);
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                              Entry{WeakTensor(tensor.getIntrusivePtr()), model, wanders});
  }

  void prune() {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.tensor.expired(); });
  }

  void forget(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    entries_.erase(tensor.unsafeGetTensorImpl());
  }

  std::shared_ptr<OffloadedModel> model_of(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : found->second.model.lock();
  }

  bool wanders(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found != entries_.end() && found->second.wanders;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

at::Tensor locked(const WeakTensor& tensor) {
  auto held = tensor.lock();
  return held ? at::Tensor(std::move(held)) : at::Tensor();
}

}  // namespace

std::shared_ptr<OffloadedModel> OffloadedModel::attach(OffloadPlan plan) {
  std::shared_ptr<OffloadedModel> model(new OffloadedModel());
  Directory::instance().prune();
  StorageMove move(plan.pager.device);
  std::vector<at::Tensor> to_move;
  for (const NamedParameter& other : plan.others) {
    const at::Tensor& tensor = other.parameter;
    if (!StorageMove::can_move(tensor) || is_on(tensor, plan.pager.device)) continue;
    if (std::ranges::any_of(to_move, [&](const auto& known) { return known.is_same(tensor); })) {
      continue;
    }
    const at::Tensor there = move.prepare(tensor);
    const auto value = plan.values.find(other.name);
    if (tensor.is_meta() && value != plan.values.end()) read_into(value->second, there);
    to_move.push_back(tensor);
  }
  // Before the Pager, whose own hooks then lie above, and go first.
  for (const NamedParameter& other : plan.others) model->sign(other.parameter, false);
  for (const UnitPlan& unit : plan.units) {
    for (const NamedParameter& named : unit.parameters) model->sign(named.parameter, true);
  }
  try {
    model->pager_ = std::make_unique<Pager>(std::move(plan.units), plan.pager);
  } catch (...) {
    model->unsign();
    throw;
  }
  for (const at::Tensor& tensor : to_move) {
    model->moved_.push_back({WeakTensor(tensor.getIntrusivePtr()), tensor.device()});
    move.move(tensor);
  }
  return model;
}

void OffloadedModel::sign(const at::Tensor& tensor, bool wanders) {
  if (!tensor.defined() || tensor.is_inference()) return;
  if (Directory::instance().model_of(tensor).get() == this) return;
  add_owner(tensor, shared_from_this());
  Directory::instance().add(tensor, shared_from_this(), wanders);
  signed_.emplace_back(tensor.getIntrusivePtr());
}

void OffloadedModel::unsign() {
  for (const WeakTensor& weak : signed_) {
    const at::Tensor tensor = locked(weak);
    if (!tensor.defined()) continue;
    remove_owner(tensor, this);
    Directory::instance().forget(tensor);
  }
  signed_.clear();
}

std::vector<std::shared_ptr<OffloadedModel>> OffloadedModel::of(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<OffloadedModel>> models;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      auto model = Directory::instance().model_of(tensor);
      if (!model || !model->pager_) continue;
      if (std::ranges::find(models, model) == models.end()) models.push_back(std::move(model));
    }
  };
  add(module.parameters());
  add(module.buffers());
  return models;
}

std::vector<std::string> OffloadedModel::strays_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (!is_paged(item.value()) && Directory::instance().wanders(item.value())) {
        names.push_back(item.key());
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return names;
}

void OffloadedModel::undo(std::optional<c10::Device> device) {
  if (!pager_) return;
  if (device) device = present_device(*device, "An offloaded model cannot be undone");
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
  pager_.reset();
  unsign();
}

void OffloadedModel::leave_device() {
  if (!pager_ || !is_used_.exchange(false, std::memory_order_relaxed)) return;
  try {
    pager_->evict_all();
  } catch (...) {
    note_use();
    throw;
  }
  if (pager_->statistics().resident_bytes > 0) note_use();
}

}  // namespace accelerant::paging
