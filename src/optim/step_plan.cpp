#include "optim/step_plan.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "optim/step_plan_slots.h"

namespace accelerant::optim::detail {
namespace {

// States that are looked up at each step to detect whether they were replaced.
constexpr std::size_t kLookedUp = 4;

// The number of parameters that justifies another host thread.
constexpr int64_t kParametersOfAThread = 1024;

bool same(const kernels::Hyper& left, const kernels::Hyper& right) {
  return std::memcmp(&left, &right, sizeof(left)) == 0;
}

template <class T>
void prefetch(const T* object) {
  constexpr std::size_t kCacheLine = 64;
  for (std::size_t offset = 0; offset < sizeof(T); offset += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(object) + offset);
  }
}

// Tensors are scattered in memory, and each leads to the next: from a parameter to its gradient, to
// the gradient's storage and version. Prefetch what is needed a little later, one level after
// another. With thousands of small parameters this is most of a step's cost on the host.
void look_ahead(const std::vector<at::Tensor>& parameters, std::size_t from) {
  constexpr std::size_t kStride = 6;
  const auto parameter_after = [&](std::size_t strides) {
    const std::size_t index = std::min(from + strides * kStride, parameters.size() - 1);
    return parameters[index].unsafeGetTensorImpl();
  };
  prefetch(parameter_after(4));
  prefetch(parameter_after(3)->autograd_meta());
  prefetch(parameter_after(2)->grad().unsafeGetTensorImpl());
  const c10::TensorImpl* const gradient = parameter_after(1)->grad().unsafeGetTensorImpl();
  __builtin_prefetch(gradient->unsafe_storage().unsafeGetStorageImpl());
  version_of(*gradient);
}

[[noreturn]] void refuse_early(const char* got) {
  throw Error(ErrorDetails{
      .problem = "A step is not the one that was begun during backward",
      .expected = "step() right after backward(), with the same parameters, gradients and options",
      .got = got,
      .hint = "some states are already updated, so load a checkpoint before going on; set "
              "AcceleratorOptions::offload.update_in_backward to false"});
}

}  // namespace

bool& images_on_every_device() {
  static bool on = false;
  return on;
}

StepPlan::StepPlan(torch::optim::Optimizer& optimizer, const FusedStepOptions& options)
    : optimizer_(optimizer), kind_(*find_fused_kind(optimizer)), options_(options) {}

StepPlan::~StepPlan() = default;

// Whether the parameter is unchanged since the tables were built. This runs for every parameter at
// every step: it reads a few words of each tensor and nothing else.
bool StepPlan::look_at(Seen& seen, const at::Tensor& parameter, Changes& changes) {
  const c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
  if (impl != seen.parameter) return false;
  const at::Tensor& gradient = impl->grad();
  if (!gradient.defined()) return seen.tensor < 0;
  if (seen.tensor < 0 || impl->unsafe_storage().unsafeGetStorageImpl() != seen.storage ||
      impl->storage_offset() != seen.offset || impl->numel() != seen.numel) {
    return false;
  }
  const c10::TensorImpl* const grad = gradient.unsafeGetTensorImpl();
  if (grad->key_set().raw_repr() != seen.gradient_keys ||
      c10::typeMetaToScalarType(grad->dtype()) != seen.gradient_type ||
      grad->numel() != seen.numel) {
    return false;
  }
  const int64_t version = version_of(*grad);
  if (version != seen.gradient_version) {
    seen.gradient_version = version;
    changes.values = true;
  }
  switch (seen.access) {
    case Access::contiguous:
      if (!grad->is_contiguous()) return false;
      break;
    case Access::same_strides:
      if (!gradient.strides().equals(parameter.strides())) return false;
      break;
    case Access::packed:
      changes.values = true;
      return gradient.sizes().equals(parameter.sizes());
  }
  const void* const data = grad->data();
  const void*& known = gradients_.host[static_cast<std::size_t>(seen.tensor)];
  if (data != known) {
    known = data;
    changes.addresses = true;
  }
  return true;
}

bool StepPlan::are_groups_known() {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != group_sizes_.size()) return false;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].params().size() != group_sizes_[g] || !readers_[g].reads(groups[g].options()) ||
        readers_[g].rule() != rules_[g]) {
      return false;
    }
  }
  return true;
}

bool StepPlan::look() {
  if (!are_groups_known()) return false;
  auto seen = seen_.begin();
  std::atomic<bool> are_all_known = true;
  std::atomic<bool> has_other_values = false;
  std::atomic<bool> has_other_addresses = false;
  for (const auto& group : optimizer_.param_groups()) {
    const std::vector<at::Tensor>& parameters = group.params();
    at::parallel_for(0, std::ssize(parameters), kParametersOfAThread,
                     [&](int64_t begin, int64_t end) {
                       Changes changes;
                       for (int64_t i = begin; i < end; ++i) {
                         const auto index = static_cast<std::size_t>(i);
                         look_ahead(parameters, index);
                         if (look_at(seen[i], parameters[index], changes)) continue;
                         are_all_known = false;
                         break;
                       }
                       if (changes.values) has_other_values = true;
                       if (changes.addresses) has_other_addresses = true;
                     });
    if (!are_all_known) return false;
    seen += std::ssize(parameters);
  }
  if (has_other_values || has_other_addresses) ++gradients_version_;
  if (has_other_addresses) gradients_.upload(device_, of_graphs_);
  return true;
}

// torch::load replaces all states, so checking a few of them is enough to detect it.
bool StepPlan::is_state_known() {
  const auto& states = optimizer_.state();
  for (std::size_t i = 0; i < std::min(kLookedUp, seen_.size()); ++i) {
    next_looked_up_ = (next_looked_up_ + 1) % seen_.size();
    const auto slot = slots_.find(seen_[next_looked_up_].parameter);
    if (slot == slots_.end() || slot->second->state == nullptr) continue;
    const auto entry = states.find(slot->second->parameter.unsafeGetTensorImpl());
    if (entry == states.end() || entry->second.get() != slot->second->state) return false;
  }
  return true;
}

void StepPlan::require_whole_step() const {
  if (!is_done_in_part_) return;
  throw Error(ErrorDetails{.problem = "A step of this optimizer has failed in the middle",
                           .expected = "states and parameters that belong to the same step",
                           .got = "some that are updated, and others that are not",
                           .hint = "load a checkpoint before going on"});
}

StepPlan::Readiness StepPlan::prepare() {
  require_parameters_of_early();
  if (built_ && !is_state_known()) {
    reload_ = true;
    is_done_in_part_ = false;  // it was replaced
  }
  require_whole_step();
  if (has_early() && (reload_ || !are_groups_known())) {
    refuse_early("param groups, options or states that were replaced meanwhile");
  }
  // A graph has its own tables.
  if (!built_ || reload_ || capture_ != compat::current_capture(device_) || !look()) {
    const Readiness readiness = rebuild();
    if (readiness != Readiness::ready) return readiness;
  } else {
    upload_options(/*all=*/false);
  }
  pack_gradients();
  for (Slot* slot : slots_with_copies_) settle_copies(*slot);
  return tensors_.host.empty() ? Readiness::no_gradients : Readiness::ready;
}

void StepPlan::upload_options(bool all) {
  all = all || has_chosen_rates_;
  bool changed = all;
  for (std::size_t g = 0; g < readers_.size(); ++g) {
    const kernels::Hyper hyper = readers_[g].hyper();
    if (!all && same(hyper, groups_.host[g])) continue;
    groups_.host[g] = hyper;
    changed = true;
  }
  if (!changed) return;
  if (compat::current_capture(device_) != 0) {
    throw Error(ErrorDetails{
        .problem = "The options of an optimizer changed right before its step was captured",
        .expected = "the learning rates of the previous step",
        .hint = "step once, or call prepare_replay(), before the capture begins"});
  }
  groups_.upload(device_, of_graphs_);
  has_chosen_rates_ = false;
}

void StepPlan::upload_options(const RateChoice& choice) {
  const auto require = [](bool holds, const std::string& expected, std::size_t got) {
    if (holds) return;
    throw Error(ErrorDetails{.problem = "A choice of learning rates does not match the optimizer",
                             .expected = expected,
                             .got = c10::str(got)});
  };
  require(!choice.rates.empty(), "at least one case", 0);
  std::vector<kernels::Hyper> cases;
  for (const std::vector<double>& rates : choice.rates) {
    require(rates.size() == readers_.size(),
            c10::str(readers_.size(), " rates, one per param group"), rates.size());
    for (std::size_t g = 0; g < readers_.size(); ++g) {
      cases.push_back(readers_[g].hyper());
      cases.back().lr = rates[g];
    }
  }
  has_chosen_rates_ = true;
  groups_.upload_chosen(device_, cases, choice.which.to(device_));
}

void StepPlan::prepare_replay(const RateChoice* choice) {
  if (!built_ || !are_groups_known()) return;
  if (choice != nullptr) {
    upload_options(*choice);
  } else {
    upload_options(/*all=*/false);
  }
  for (auto& [parameter, slot] : slots_) settle_copies(*slot);
  // A replay counts on the device, and nothing else reports it.
  steps_ahead_ = steps_.defined();
}

void StepPlan::reserve_for_capture() {
  if (!built_) return;
  tensors_.reserve_for_graph(device_);
  gradients_.reserve_for_graph(device_);
  blocks_.reserve_for_graph(device_);
  bundles_.reserve_for_graph(device_);
}

std::vector<at::Tensor> StepPlan::take_memory_of_graphs() {
  // A later capture must not use what is still reserved: it may not be followed by this call.
  tensors_.release_reserved();
  gradients_.release_reserved();
  blocks_.release_reserved();
  bundles_.release_reserved();
  for (const auto& upload : of_graphs_.uploads) upload();
  return std::exchange(of_graphs_, {}).memory;
}

uint64_t StepPlan::fingerprint() {
  if (!built_ || reload_ || !is_state_known() || !are_groups_known()) return 0;
  return generation_;
}

void StepPlan::pack_gradients() {
  const at::NoGradGuard no_grad;
  for (const Packed& packed : packed_gradients_) packed.copy.copy_(packed.parameter.grad());
  for (const Packed& packed : packed_parameters_) packed.copy.copy_(packed.parameter);
}

// If others have written the parameter since our last step, its new values count, unless they are
// just the rounded master copy.
void StepPlan::settle_copies(Slot& slot) {
  const int64_t version = version_of(*slot.parameter.unsafeGetTensorImpl());
  if (!slot.has_copies() || slot.parameter_version == version) return;
  const at::NoGradGuard no_grad;
  slot.parameter_version = version;
  if (slot.image.defined()) slot.image.copy_(slot.parameter);
  if (!slot.master.defined()) return;
  const at::Tensor& parameter = slot.image.defined() ? slot.image : slot.parameter;
  const at::Tensor image = slot.master.to(parameter.scalar_type());
  slot.master.copy_(at::where(image.eq(parameter), slot.master, parameter.to(at::kFloat)));
}

kernels::StepTables StepPlan::tables() const {
  return {.tensors = tensors_.data(),
          .gradients = gradients_.data(),
          .blocks = blocks_.data(),
          .bundles = bundles_.data(),
          .groups = groups_.data(),
          .steps = steps_.mutable_data_ptr<int64_t>(),
          .partials = static_cast<kernels::StepPartial*>(partials_.mutable_data_ptr())};
}

void StepPlan::applied() {
  const at::NoGradGuard no_grad;
  for (const Packed& packed : packed_parameters_) packed.parameter.copy_(packed.copy);
  // The kernels write memory without autograd noticing; bump versions so that stale saved tensors
  // are detected.
  at::parallel_for(0, std::ssize(seen_), kParametersOfAThread, [&](int64_t begin, int64_t end) {
    constexpr int64_t kStride = 8;
    const auto at_or_last = [&](int64_t index) {
      return seen_[static_cast<std::size_t>(std::min(index, end - 1))].parameter;
    };
    for (int64_t i = begin; i < end; ++i) {
      prefetch(at_or_last(i + 2 * kStride));
      version_of(*at_or_last(i + kStride));  // prefetches it, like look_ahead()
      const Seen& seen = seen_[static_cast<std::size_t>(i)];
      if (seen.tensor >= 0) const_cast<c10::TensorImpl*>(seen.parameter)->bump_version();
    }
  });
  for (Slot* slot : slots_with_copies_) {
    slot->parameter_version = version_of(*slot->parameter.unsafeGetTensorImpl());
  }
  steps_ahead_ = true;
}

void StepPlan::wait_until_sent() {
  for (auto& [device, event] : sent_) event.synchronize();
}

void StepPlan::send(const StepPart& part) {
  const at::NoGradGuard no_grad;
  failpoint("optim.send");
  for (int32_t tensor = part.first_tensor; tensor < part.end_tensor; ++tensor) {
    const Slot& slot = *slots_by_tensor_[static_cast<std::size_t>(tensor)];
    const auto early = early_.find(slot.parameter.unsafeGetTensorImpl());
    const bool is_sent = early != early_.end() && early->second.is_sent;
    if (slot.image.defined() && !is_sent) slot.parameter.copy_(slot.image, /*non_blocking=*/true);
  }
}

void StepPlan::end_parts() {
  is_done_in_part_ = false;
  sent_.clear();
  for (const Slot* slot : slots_with_copies_) {
    const c10::Device device = slot->parameter.device();
    const bool is_known =
        std::ranges::any_of(sent_, [&](const auto& entry) { return entry.first == device; });
    if (device.is_cpu() || is_known) continue;
    c10::Event event(device.type());
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    sent_.emplace_back(device, std::move(event));
  }
}

kernels::BlockRange StepPlan::blocks_of(int32_t tensor) const {
  const auto t = static_cast<std::size_t>(tensor);
  return {.begin = first_blocks_[t], .end = first_blocks_[t + 1]};
}

bool StepPlan::begin_early() {
  if (!built_ || reload_ || !has_images_ || has_early() || is_done_in_part_ ||
      !packed_gradients_.empty() || !is_state_known() || !are_groups_known()) {
    return false;
  }
  upload_options(/*all=*/false);
  for (Slot* slot : slots_with_copies_) settle_copies(*slot);
  if (seen_generation_ != built_generation_) {
    seen_generation_ = built_generation_;
    seen_by_parameter_.clear();
    for (std::size_t i = 0; i < seen_.size(); ++i) seen_by_parameter_[seen_[i].parameter] = i;
  }
  early_groups_ = groups_.host;
  return true;
}

int32_t StepPlan::update_early(const at::Tensor& parameter, const kernels::StepFactors& factors) {
  const auto place = seen_by_parameter_.find(parameter.unsafeGetTensorImpl());
  if (place == seen_by_parameter_.end()) return -1;
  Seen& seen = seen_[place->second];
  Changes changes;
  if (seen.tensor < 0 || seen.access == Access::packed || !look_at(seen, parameter, changes)) {
    return -1;
  }
  if (!slots_by_tensor_[static_cast<std::size_t>(seen.tensor)]->image.defined()) return -1;
  const auto note = [&](const Early& early) {
    const std::scoped_lock lock(early_mutex_);
    early_[seen.parameter] = early;
  };
  note({});  // matches no gradient, in case the update fails half-way
  wait_until_sent();
  kernels::cpu::update_blocks(tables(), costs(), blocks_of(seen.tensor), factors, {});
  const c10::TensorImpl* const gradient = parameter.grad().unsafeGetTensorImpl();
  note({.gradient = gradient, .version = version_of(*gradient)});
  return seen.tensor;
}

void StepPlan::send_early(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const auto find = [&]() -> Early* {
    const auto early = early_.find(parameter.unsafeGetTensorImpl());
    return early == early_.end() || early->second.gradient == nullptr ? nullptr : &early->second;
  };
  {
    const std::scoped_lock lock(early_mutex_);
    if (find() == nullptr) return;
  }
  failpoint("optim.send_early");
  Slot& slot = *slots_.at(parameter.unsafeGetTensorImpl());
  slot.parameter.copy_(slot.image, /*non_blocking=*/true);
  slot.parameter_version = version_of(*slot.parameter.unsafeGetTensorImpl());
  const std::scoped_lock lock(early_mutex_);
  find()->is_sent = true;  // if it failed, the step sends it
}

bool StepPlan::is_early(int32_t tensor) const {
  const Slot& slot = *slots_by_tensor_[static_cast<std::size_t>(tensor)];
  return early_.contains(slot.parameter.unsafeGetTensorImpl());
}

// Settling a parameter that was written would discard its update, but not that of its state.
void StepPlan::require_parameters_of_early() const {
  for (const auto& [parameter, early] : early_) {
    const auto known = slots_.find(parameter);
    if (known == slots_.end()) continue;  // check_early() misses its gradient
    const Slot& slot = *known->second;
    if (version_of(*parameter) != slot.parameter_version || !slot.has_storage_of(slot.parameter)) {
      refuse_early("a parameter that was changed after its update had begun");
    }
  }
}

void StepPlan::check_early(bool is_plain) {
  if (early_.empty()) return;
  const char* fault = is_plain ? nullptr : "clipping, a loss scale or a factor";
  std::size_t found = 0;
  for (const Slot* slot : slots_by_tensor_) {
    const c10::TensorImpl* const parameter = slot->parameter.unsafeGetTensorImpl();
    const auto known = early_.find(parameter);
    if (known == early_.end()) continue;
    ++found;
    const c10::TensorImpl* const gradient = parameter->grad().unsafeGetTensorImpl();
    if (gradient != known->second.gradient || version_of(*gradient) != known->second.version) {
      fault = "another gradient than backward made";
    }
  }
  if (found != early_.size()) fault = "no gradient of a parameter that is already updated";
  if (!std::ranges::equal(early_groups_, groups_.host, same)) fault = "other learning rates";
  if (fault != nullptr) refuse_early(fault);
}

// Which parameters the graph contains is not known here.
void StepPlan::note_replayed() {
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  for (auto& [parameter, slot] : slots_) {
    slot->parameter_version = version_of(*slot->parameter.unsafeGetTensorImpl());
  }
}

void StepPlan::sync() {
  if (!steps_ahead_) return;
  const at::Tensor counts = steps_.cpu();
  const int64_t* const count = counts.const_data_ptr<int64_t>();
  auto& states = optimizer_.state();
  for (auto& [parameter, slot] : slots_) {
    const auto entry = states.find(slot->parameter.unsafeGetTensorImpl());
    if (entry == states.end() || entry->second.get() != slot->state) continue;
    const FusedState state =
        fused_state_of(kind_, optimizer_, slot->parameter, slot->rule, slot->master.defined());
    if (slot->index >= slot_count_ - std::ssize(new_slots_)) continue;  // not on the device yet
    const int64_t steps = count[slot->index];
    if (state.step != nullptr) *state.step = steps;
    if (slot->fresh_momentum && steps == 0) {
      // All steps so far were skipped: to torch's own step, a buffer of zeros would mean that there
      // was a step.
      states.erase(entry);
      reload_ = true;
    }
    if (steps > 0) slot->fresh_momentum = false;
  }
  steps_ahead_ = false;
}

void StepPlan::reload() {
  reload_ = true;
  is_done_in_part_ = false;
  early_.clear();
  steps_ahead_ = false;
}

// Holds the memory that the pass writes, and the places that its rows refer to.
class StepPlan::Report final : public CheckedGradients {
 public:
  Report(std::shared_ptr<const Layout> layout, at::Tensor partials)
      : layout_(std::move(layout)), partials_(std::move(partials)) {}

  std::vector<CheckedGradient> parameters() const override {
    std::vector<CheckedGradient> result;
    for (const Place& place : layout_->places) {
      if (auto parameter = place.parameter.lock()) {
        result.push_back({.group = place.group,
                          .index = place.index,
                          .parameter = at::Tensor(std::move(parameter))});
      }
    }
    return result;
  }

  std::vector<CheckedGradient> non_finite() const override {
    const at::Tensor host = partials_.cpu();
    const auto* const partial = static_cast<const kernels::StepPartial*>(host.const_data_ptr());
    std::vector<CheckedGradient> counts(layout_->places.size());
    for (std::size_t i = 0; i < layout_->blocks.size(); ++i) {
      auto& count = counts[static_cast<std::size_t>(layout_->blocks[i].tensor)];
      count.inf_count += partial[i].inf;
      count.nan_count += partial[i].nan;
    }
    std::vector<CheckedGradient> found;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i].inf_count + counts[i].nan_count == 0) continue;
      const Place& place = layout_->places[i];
      counts[i].group = place.group;
      counts[i].index = place.index;
      if (auto parameter = place.parameter.lock())
        counts[i].parameter = at::Tensor(std::move(parameter));
      found.push_back(std::move(counts[i]));
    }
    std::ranges::sort(found, [](const auto& left, const auto& right) {
      return std::pair(left.group, left.index) < std::pair(right.group, right.index);
    });
    return found;
  }

 private:
  std::shared_ptr<const Layout> layout_;
  at::Tensor partials_;
};

std::shared_ptr<const CheckedGradients> StepPlan::checked() const {
  return std::make_shared<Report>(layout_, partials_);
}

}  // namespace accelerant::optim::detail
