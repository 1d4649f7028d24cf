#include "accelerator/offload/host_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>

#include "accelerator/core.h"
#include "accelerator/offload/update_thread.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "compat/pinned_memory.h"
#include "optim/step_plan.h"

namespace accelerant::detail {
namespace {

namespace autograd = torch::autograd;

// Contiguous in the order of the parameter, as the step reads it.
std::vector<int64_t> strides_for_gradients_of(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  const auto layout = at::empty_like(parameter, parameter.options().device(c10::kMeta),
                                     at::MemoryFormat::Contiguous);
  return layout.strides().vec();
}

}  // namespace

// libtorch has one such hook per tensor; one that is there already runs first. A hook that came
// later keeps this one for as long as the parameter lives: it does nothing once it is detached.
class HostGradients::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(const std::shared_ptr<HostGradients*>& owner,
       std::unique_ptr<autograd::PostAccumulateGradHook> first)
      : owner_(owner), first_(std::move(first)) {}

  void operator()(const autograd::Variable& parameter) override {
    if (first_) (*first_)(parameter);
    if (const auto owner = owner_.lock()) (*owner)->note_final(parameter);
  }

  bool belongs_to(const std::shared_ptr<HostGradients*>& owner) const {
    return owner_.lock() == owner;
  }
  std::unique_ptr<autograd::PostAccumulateGradHook> take_first() { return std::move(first_); }

 private:
  std::weak_ptr<HostGradients*> owner_;
  std::unique_ptr<autograd::PostAccumulateGradHook> first_;
};

HostGradients::Lane::Lane(c10::Device of)
    : device(of),
      stream(c10::impl::VirtualGuardImpl(of.type()).getStreamFromGlobalPool(of)),
      computed(of.type()) {}

HostGradients::~HostGradients() {
  for (auto& [key, entry] : entries_) detach(entry);
}

void HostGradients::detach(Entry& entry) {
  if (!entry.hook_owner) return;
  auto& hook = autograd::impl::post_acc_grad_hooks(entry.parameter);
  auto* const own = dynamic_cast<Hook*>(hook.get());
  if (own != nullptr && own->belongs_to(entry.hook_owner)) hook = own->take_first();
  entry.hook_owner.reset();
}

bool HostGradients::may_leave(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.requires_grad()) {
    return false;
  }
  return !gradient.is_cpu() || optim::detail::images_on_every_device();
}

// Parameters may come and go, be frozen and unfrozen, and move to their device after the optimizer
// was prepared.
void HostGradients::attach() {
  std::size_t fingerprint = fingerprint_of_parameters(optimizer_);
  for_each_parameter(optimizer_, [&](const at::Tensor& parameter) {
    fingerprint = c10::hash_combine(fingerprint, parameter.requires_grad() ? 1 : 0);
  });
  if (fingerprint == attached_to_) return;
  std::unordered_set<const c10::TensorImpl*> present;
  for_each_parameter(optimizer_, [&](const at::Tensor& parameter) {
    present.insert(parameter.unsafeGetTensorImpl());
    if (!parameter.requires_grad() || !parameter.is_leaf()) return;
    Entry& entry = entry_of(parameter);
    if (entry.hook_owner) return;
    entry.hook_owner = std::make_shared<HostGradients*>(this);
    auto& hook = autograd::impl::post_acc_grad_hooks(parameter);
    hook = std::make_unique<Hook>(entry.hook_owner, std::move(hook));
  });
  for (auto known = entries_.begin(); known != entries_.end();) {
    const bool is_gone = !present.contains(known->first);
    if (is_gone) detach(known->second);
    known = is_gone ? entries_.erase(known) : std::next(known);
  }
  attached_to_ = fingerprint;
}

HostGradients::Entry& HostGradients::entry_of(const at::Tensor& parameter) {
  Entry& entry = entries_[parameter.unsafeGetTensorImpl()];
  if (!entry.parameter.defined()) entry.parameter = parameter;
  return entry;
}

void HostGradients::begin_leaving() {
  const bool any = any_parameter(optimizer_, [](const at::Tensor& parameter) {
    return !parameter.is_cpu() || optim::detail::images_on_every_device();
  });
  if (!any) return;
  attach();
  const std::scoped_lock lock(mutex_);
  is_leaving_ = true;
}

void HostGradients::end_leaving() {
  const std::scoped_lock lock(mutex_);
  is_leaving_ = false;
  updates_ = nullptr;
  wait_for_copies();
}

bool HostGradients::is_leaving() {
  const std::scoped_lock lock(mutex_);
  return is_leaving_;
}

void HostGradients::hand_to(UpdateThread* updates) {
  const std::scoped_lock lock(mutex_);
  updates_ = updates;
}

void HostGradients::note_final(const at::Tensor& parameter) {
  const std::scoped_lock lock(mutex_);
  if (!is_leaving_) return;
  const auto found = entries_.find(parameter.unsafeGetTensorImpl());
  if (found == entries_.end() || !may_leave(parameter.grad())) return;
  const c10::Device device = parameter.grad().device();
  leave(found->second);
  if (updates_ == nullptr) return;
  std::optional<c10::Event> arrived;
  if (!device.is_cpu()) {
    arrived.emplace(device.type());
    arrived->record(lane_of(device).stream);
  }
  updates_->add(parameter, std::move(arrived));
}

// Memory that the program still looks at is not written again.
void HostGradients::make_room(Entry& entry, const at::Tensor& gradient) {
  const at::Tensor& memory = entry.on_host;
  const bool fits = memory.defined() && memory.sizes() == gradient.sizes() &&
                    memory.scalar_type() == gradient.scalar_type() && memory.use_count() == 1 &&
                    memory.storage().use_count() == 1;
  if (fits) return;
  entry.on_host.reset();
  entry.on_host =
      compat::empty_on_host_for(gradient.device(), gradient.sizes(),
                                strides_for_gradients_of(entry.parameter), gradient.scalar_type());
}

void HostGradients::leave(Entry& entry) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (gradient.is_same(entry.on_host)) return;
  make_room(entry, gradient);
  if (gradient.is_cpu()) {
    entry.on_host.copy_(gradient);
  } else {
    Lane& lane = lane_of(gradient.device());
    lane.computed.record(c10::impl::VirtualGuardImpl(lane.device.type()).getStream(lane.device));
    lane.computed.block(lane.stream);
    const c10::StreamGuard guard(lane.stream);
    entry.on_host.copy_(gradient, /*non_blocking=*/true);
    gradient.record_stream(lane.stream);  // freed now, but not used again before it is copied
  }
  gradient = entry.on_host;
}

HostGradients::Lane& HostGradients::lane_of(c10::Device device) {
  auto found =
      std::ranges::find_if(lanes_, [&](const auto& lane) { return lane->device == device; });
  if (found == lanes_.end()) {
    found = lanes_.insert(found, std::make_unique<Lane>(device));
  }
  (*found)->is_in_use = true;
  return **found;
}

void HostGradients::wait_for_copies() {
  for (const auto& lane : lanes_) {
    if (std::exchange(lane->is_in_use, false)) lane->stream.synchronize();
  }
}

bool HostGradients::fetch_all() {
  const std::scoped_lock lock(mutex_);
  bool any = false;
  for_each_parameter(optimizer_, [&](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return;
    const bool is_here = gradient.is_cpu() && (!optim::detail::images_on_every_device() ||
                                               gradient.is_same(entry_of(parameter).on_host));
    if (is_here || gradient.layout() != at::kStrided) return;
    leave(entry_of(parameter));
    any = true;
  });
  wait_for_copies();
  return any;
}

bool HostGradients::take_back_all() {
  const at::NoGradGuard no_grad;
  bool any = false;
  for (auto& [key, entry] : entries_) {
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (!gradient.defined() || !gradient.is_same(entry.on_host)) continue;
    const auto options = gradient.options().device(entry.parameter.device());
    gradient = at::empty_like(gradient, options).copy_(gradient, /*non_blocking=*/true);
    any = true;
  }
  return any;
}

LeavingGradients::LeavingGradients(Core& core) : core_(&core) {
  try {
    for (const auto& optimizer : core.optimizers.all()) optimizer->begin_backward();
  } catch (...) {
    give_up();  // no destructor will
    throw;
  }
}

void LeavingGradients::begin_updates(const Window* window) const {
  for (const auto& optimizer : core_->optimizers.all()) optimizer->begin_updates(window);
}

// All of them, even if one fails: what still leaves would leave in every later backward.
void LeavingGradients::finish() {
  Core& core = *std::exchange(core_, nullptr);
  std::exception_ptr first_failure;
  for (const auto& optimizer : core.optimizers.all()) {
    try {
      optimizer->end_backward();
    } catch (...) {
      if (!first_failure) first_failure = std::current_exception();
    }
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

void LeavingGradients::give_up() noexcept {
  try {
    finish();
  } catch (const std::exception&) {
    // The device has failed, which the exception on its way says too.
  }
}

LeavingGradients::~LeavingGradients() {
  if (core_ != nullptr) give_up();
}

}  // namespace accelerant::detail
