// Building the tables of a fused step.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_set>

#include "accelerant/core/error.h"
#include "amp/unscale.h"
#include "compat/paging_key.h"
#include "compat/pinned_memory.h"
#include "optim/step_plan_slots.h"

namespace accelerant::optim::detail {
namespace {

using accelerant::detail::scalar_kind;
using kernels::ScalarKind;
using kernels::StepTensor;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

bool is_16_bit(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

bool is_known(at::ScalarType type) {
  return is_16_bit(type) || type == at::kFloat || type == at::kDouble;
}

// Strides of dimensions with one element do not matter.
bool lie_alike(const at::Tensor& left, const at::Tensor& right) {
  if (left.is_contiguous() && right.is_contiguous()) return true;
  for (int64_t d = 0; d < left.dim(); ++d) {
    if (left.size(d) != 1 && left.stride(d) != right.stride(d)) return false;
  }
  return true;
}

bool is_plain(const at::Tensor& tensor) { return !tensor.is_neg() && !tensor.is_conj(); }

// What is updated and sent as a whole: long enough for all threads and for fast copies, short
// enough that copies begin early.
constexpr int64_t kElementsOfAPart = int64_t{8} << 20;

// A tensor of the parameter's shape with contiguous elements in the parameter's order.
at::Tensor empty_for(const at::Tensor& parameter, at::ScalarType type, c10::Device device) {
  const auto options = parameter.options().dtype(type).device(device).requires_grad(false);
  if (parameter.is_non_overlapping_and_dense()) {
    return at::empty_strided(parameter.sizes(), parameter.strides(), options);
  }
  return at::empty(parameter.sizes(), options);
}

at::Tensor new_image_of(const at::Tensor& parameter) {
  std::vector<int64_t> strides = parameter.strides().vec();
  if (!parameter.is_non_overlapping_and_dense()) {
    int64_t stride = 1;
    for (std::size_t d = strides.size(); d-- > 0;) {
      strides[d] = stride;
      stride *= std::max<int64_t>(parameter.sizes()[d], 1);
    }
  }
  return compat::empty_on_host_for(parameter.device(), parameter.sizes(), strides,
                                   parameter.scalar_type());
}

// Each has an image of its own: of two that share memory, one update would be lost.
void require_memory_of_their_own(const std::vector<const c10::TensorImpl*>& parameters) {
  struct Range {
    const c10::StorageImpl* storage;
    int64_t begin, end;  // in bytes
  };
  std::vector<Range> ranges;
  for (const c10::TensorImpl* const parameter : parameters) {
    if (parameter->numel() == 0) continue;
    int64_t last = 0;
    for (int64_t d = 0; d < parameter->dim(); ++d) {
      last += (parameter->size(d) - 1) * parameter->stride(d);
    }
    const auto size = static_cast<int64_t>(parameter->itemsize());
    const int64_t begin = parameter->storage_offset() * size;
    ranges.push_back(
        {parameter->unsafe_storage().unsafeGetStorageImpl(), begin, begin + (last + 1) * size});
  }
  std::ranges::sort(ranges, [](const Range& left, const Range& right) {
    return std::tie(left.storage, left.begin) < std::tie(right.storage, right.begin);
  });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].storage != ranges[i - 1].storage || ranges[i].begin >= ranges[i - 1].end)
      continue;
    throw Error(ErrorDetails{
        .problem = "Two parameters of an optimizer whose state is in host memory share memory",
        .expected = "parameters with memory of their own, or one that is registered twice",
        .got = "a parameter that is a view or detach() of another one",
        .hint = "tie weights by registering the same tensor under both names"});
  }
}

}  // namespace

c10::Device StepPlan::home_of(const at::Tensor& parameter) const {
  return options_.on_host ? c10::Device(c10::kCPU) : parameter.device();
}

bool StepPlan::needs_image(const at::Tensor& parameter) const {
  return options_.on_host &&
         (!parameter.is_cpu() || compat::has_paging_key(parameter) || images_on_every_device());
}

std::string StepPlan::reason_against(const at::Tensor& parameter,
                                     const at::Tensor& gradient) const {
  const at::ScalarType type = parameter.scalar_type();
  const at::ScalarType gradient_type = gradient.scalar_type();
  if (gradient.layout() != at::kStrided || parameter.layout() != at::kStrided) {
    return c10::str("a gradient of layout ", gradient.layout());
  }
  if (!is_known(type)) return c10::str("a parameter of type ", c10::toString(type));
  const bool both_double = type == at::kDouble && gradient_type == at::kDouble;
  const bool one_double = type == at::kDouble || gradient_type == at::kDouble;
  if (!is_known(gradient_type) || (one_double && !both_double)) {
    return c10::str("a gradient of type ", c10::toString(gradient_type),
                    " for a parameter of type ", c10::toString(type));
  }
  if (both_double && !device_.is_cpu()) return "float64 on a GPU";
  if (!options_.on_host && (parameter.device() != device_ || gradient.device() != device_)) {
    return "tensors on several devices";
  }
  if (!accelerant::detail::has_kernels(device_)) return c10::str("the device ", device_);
  if (!gradient.sizes().equals(parameter.sizes())) return "a gradient with a different shape";
  if (!parameter.is_non_overlapping_and_dense() &&
      at::has_internal_overlap(parameter) == at::MemOverlap::Yes) {
    return "a parameter with overlapping elements";
  }
  return {};
}

StepPlan::Slot& StepPlan::slot_of(const at::Tensor& parameter, std::size_t group) {
  auto& slot = slots_[parameter.unsafeGetTensorImpl()];
  const bool is_new = slot == nullptr;
  if (is_new) {
    slot = std::make_unique<Slot>();
    slot->parameter = parameter;
    slot->index = slot_count_++;
    new_slots_.push_back(slot.get());
  }
  const bool moved = is_new || !slot->has_storage_of(parameter);
  if (moved) slot->storage = parameter.storage().getWeakStorageImpl();
  if (moved || slot->rule != rules_[group]) fill(*slot, parameter, group);
  return *slot;
}

// Finds or creates the tensors that the rule needs. They are those in the optimizer's state, and
// are replaced there if they have a different order than the parameter, or are on another device.
void StepPlan::fill(Slot& slot, const at::Tensor& parameter, std::size_t group) {
  slot.rule = rules_[group];
  slot.image = needs_image(parameter) ? new_image_of(parameter) : at::Tensor();
  slot.memory = slot.image.defined() ? c10::Storage() : parameter.storage();
  slot.parameter_version = -1;
  const bool with_master = options_.master_weights && is_16_bit(parameter.scalar_type());
  if (states_of(slot.rule) == 0 && !with_master) return;  // torch's own SGD has no state then
  const FusedState state = fused_state_of(kind_, optimizer_, parameter, slot.rule, with_master);
  slot.state = state.state;
  at::ScalarType type = with_master ? at::kFloat : parameter.scalar_type();
  const bool all_there =
      !state.tensors.empty() && std::ranges::all_of(state.tensors, [&](auto* tensor) {
        return tensor->defined() && tensor->scalar_type() == state.tensors[0]->scalar_type();
      });
  // A float32 state of 16-bit parameters keeps its type.
  if (all_there && !with_master && type != at::kDouble &&
      is_known(state.tensors[0]->scalar_type()) && state.tensors[0]->scalar_type() != at::kDouble) {
    type = state.tensors[0]->scalar_type();
  }
  const bool is_momentum =
      slot.rule == kernels::Rule::sgd_momentum || slot.rule == kernels::Rule::sgd_nesterov;
  slot.first_step = state.step != nullptr ? *state.step : 0;
  if (is_momentum) {
    slot.fresh_momentum = !state.tensors[0]->defined();
    slot.first_step = slot.fresh_momentum ? 0 : 1;
  }
  const c10::Device home = home_of(parameter);
  const auto settle = [&](at::Tensor& tensor, at::ScalarType wanted, double first_value) {
    at::Tensor settled = empty_for(parameter, wanted, home);
    if (!tensor.defined()) {
      tensor = settled.fill_(first_value);
    } else if (tensor.scalar_type() != wanted || tensor.device() != home ||
               !tensor.is_non_overlapping_and_dense() || !lie_alike(tensor, settled)) {
      tensor = settled.copy_(tensor);
    }
  };
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    settle(*state.tensors[i], type, readers_[group].first_sum());
    slot.states[i] = *state.tensors[i];
  }
  slot.master.reset();
  if (with_master) {
    if (!state.master->defined()) {
      *state.master = empty_for(parameter, at::kFloat, home).copy_(parameter);
    }
    settle(*state.master, at::kFloat, 0.0);
    slot.master = *state.master;
  }
}

void StepPlan::add(std::size_t group, std::size_t index) {
  const at::Tensor& parameter = optimizer_.param_groups()[group].params()[index];
  const at::Tensor& gradient = parameter.unsafeGetTensorImpl()->grad();
  Slot& slot = slot_of(parameter, group);
  Seen& seen = seen_.back();
  const c10::TensorImpl* const grad = gradient.unsafeGetTensorImpl();
  seen.storage = parameter.storage().unsafeGetStorageImpl();
  seen.offset = parameter.storage_offset();
  seen.numel = parameter.numel();
  seen.gradient_keys = grad->key_set().raw_repr();
  seen.gradient_type = gradient.scalar_type();
  seen.gradient_version = version_of(*grad);
  seen.tensor = static_cast<int32_t>(tensors_.host.size());

  const at::Tensor& here = slot.image.defined() ? slot.image : parameter;
  at::Tensor target = slot.master.defined() ? slot.master : here;
  at::Tensor weight = slot.master.defined() ? here : at::Tensor();
  if (!here.is_non_overlapping_and_dense() || !is_plain(here)) {
    at::Tensor copy = empty_for(parameter, parameter.scalar_type(), device_);
    (slot.master.defined() ? weight : target) = copy;
    packed_parameters_.push_back({.parameter = parameter, .copy = std::move(copy)});
  }
  // A gradient must have the layout of what is updated, which is either that of the parameter or
  // contiguous.
  if (is_plain(gradient) && gradient.is_non_overlapping_and_dense() &&
      gradient.device() == device_ && lie_alike(gradient, target)) {
    const bool contiguous = gradient.is_contiguous() && target.is_contiguous();
    seen.access = contiguous ? Access::contiguous : Access::same_strides;
    gradients_.host.push_back(gradient.const_data_ptr());
  } else {
    seen.access = Access::packed;
    at::Tensor copy = empty_for(target, gradient.scalar_type(), device_);
    gradients_.host.push_back(copy.const_data_ptr());
    packed_gradients_.push_back({.parameter = parameter, .copy = std::move(copy)});
  }
  if (slot.has_copies()) slots_with_copies_.push_back(&slot);
  slots_by_tensor_.push_back(&slot);

  StepTensor tensor{.parameter = target.mutable_data_ptr(),
                    .weight = weight.defined() ? weight.mutable_data_ptr() : nullptr,
                    .states = {},
                    .numel = parameter.numel(),
                    .group = static_cast<int32_t>(group),
                    .slot = static_cast<int32_t>(slot.index),
                    .rule = slot.rule,
                    .parameter_kind = scalar_kind(target.scalar_type()),
                    .weight_kind = scalar_kind(parameter.scalar_type()),
                    .gradient_kind = scalar_kind(gradient.scalar_type()),
                    .state_kind = scalar_kind(target.scalar_type())};
  for (int i = 0; i < states_of(slot.rule); ++i) {
    tensor.states[i] = slot.states[i].mutable_data_ptr();
    tensor.state_kind = scalar_kind(slot.states[i].scalar_type());
  }
  tensors_.host.push_back(tensor);
}

// Groups tensors that one kernel handles side by side, and cuts each into blocks.
void StepPlan::sort_into_segments(std::vector<Place> places) {
  const auto is_all_float32 = [](const StepTensor& tensor) {
    return tensor.weight == nullptr && tensor.parameter_kind == ScalarKind::float32 &&
           tensor.gradient_kind == ScalarKind::float32 && tensor.state_kind == ScalarKind::float32;
  };
  const auto key = [&](const StepTensor& tensor) {
    return std::pair(tensor.rule, is_all_float32(tensor));
  };
  auto& tensors = tensors_.host;
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return key(tensors[i]); });

  auto layout = std::make_shared<Layout>();
  std::vector<StepTensor> sorted;
  std::vector<const void*> gradients;
  std::vector<Slot*> slots;
  std::vector<int32_t> place_of(tensors.size());
  for (const std::size_t from : order) {
    place_of[from] = static_cast<int32_t>(sorted.size());
    sorted.push_back(tensors[from]);
    gradients.push_back(gradients_.host[from]);
    slots.push_back(slots_by_tensor_[from]);
    layout->places.push_back(std::move(places[from]));
  }
  tensors = std::move(sorted);
  gradients_.host = std::move(gradients);
  slots_by_tensor_ = std::move(slots);

  for (Seen& seen : seen_) {
    if (seen.tensor >= 0) seen.tensor = place_of[static_cast<std::size_t>(seen.tensor)];
  }

  blocks_.host.clear();
  bundles_.host.clear();
  segments_.clear();
  costs_ = {0};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (t == 0 || key(tensors[t]) != key(tensors[t - 1])) {
      segments_.push_back({.rule = tensors[t].rule,
                           .all_float32 = is_all_float32(tensors[t]),
                           .first_tensor = static_cast<int32_t>(t),
                           .tensors = 0,
                           .first_bundle = bundles(),
                           .bundles = 0});
    }
    ++segments_.back().tensors;
    for (int64_t begin = 0; begin < tensors[t].numel; begin += kernels::kStepChunk) {
      blocks_.host.push_back({.tensor = static_cast<int32_t>(t),
                              .chunk = static_cast<int32_t>(begin / kernels::kStepChunk)});
      const int64_t elements = std::min(kernels::kStepChunk, tensors[t].numel - begin);
      add_to_bundles(elements <= kernels::kSmallStepChunk);
      costs_.push_back(costs_.back() + kernels::cpu::cost_of_block(elements));
    }
  }
  layout->blocks = blocks_.host;
  layout_ = std::move(layout);
  divide_into_parts();
}

void StepPlan::divide_into_parts() {
  has_images_ =
      std::ranges::any_of(slots_by_tensor_, [](const Slot* slot) { return slot->image.defined(); });
  ++built_generation_;
  parts_.clear();
  first_blocks_.assign(tensors_.host.size() + 1, blocks());
  for (int32_t block = blocks(); block-- > 0;) {
    first_blocks_[static_cast<std::size_t>(blocks_.host[static_cast<std::size_t>(block)].tensor)] =
        block;
  }
  for (std::size_t t = tensors_.host.size(); t-- > 0;) {  // empty tensors have no blocks
    if (tensors_.host[t].numel == 0) first_blocks_[t] = first_blocks_[t + 1];
  }
  int64_t elements = kElementsOfAPart;
  for (int32_t block = 0; block < blocks(); ++block) {
    const int32_t tensor = blocks_.host[static_cast<std::size_t>(block)].tensor;
    const bool begins_tensor = parts_.empty() || tensor >= parts_.back().end_tensor;
    if (begins_tensor) {
      if (elements >= kElementsOfAPart) {
        parts_.push_back({.blocks = {block, block}, .first_tensor = tensor});
        elements = 0;
      }
      elements += tensors_.host[static_cast<std::size_t>(tensor)].numel;
      parts_.back().end_tensor = tensor + 1;
    }
    parts_.back().blocks.end = block + 1;
  }
}

// Adds the last block, together with those before it if all are small and one kernel handles them.
void StepPlan::add_to_bundles(bool is_small) {
  kernels::StepSegment& segment = segments_.back();
  if (is_small && has_open_bundle_ && segment.bundles > 0 &&
      bundles_.host.back().blocks < kernels::kMostInBundle) {
    ++bundles_.host.back().blocks;
    return;
  }
  bundles_.host.push_back({.first_block = blocks() - 1, .blocks = 1, .first = blocks_.host.back()});
  ++segment.bundles;
  has_open_bundle_ = is_small;
}

// Uploads the counts of new slots; the other counts stay on the device.
void StepPlan::bring_steps() {
  const int64_t old_count = steps_.defined() ? slot_count_ - std::ssize(new_slots_) : 0;
  if (!steps_.defined() || steps_.device() != device_ || steps_.numel() < slot_count_) {
    const auto capacity = std::max<int64_t>(slot_count_, std::ssize(seen_));
    at::Tensor steps = at::zeros({std::max<int64_t>(capacity, 1)},
                                 at::TensorOptions().dtype(at::kLong).device(device_));
    if (old_count > 0) steps.narrow(0, 0, old_count).copy_(steps_.narrow(0, 0, old_count));
    steps_ = std::move(steps);
    ++generation_;
  }
  if (new_slots_.empty()) return;
  at::Tensor counts =
      at::empty({std::ssize(new_slots_)},
                at::TensorOptions().dtype(at::kLong).pinned_memory(!device_.is_cpu()));
  for (std::size_t i = 0; i < new_slots_.size(); ++i) {
    counts.mutable_data_ptr<int64_t>()[i] = new_slots_[i]->first_step;
  }
  steps_.narrow(0, old_count, counts.numel()).copy_(counts, /*non_blocking=*/true);
  new_slots_.clear();
}

// Anything created in a capture would be created again by every replay, and never if the capture
// fails.
void StepPlan::refuse_in_capture(bool has_changes) const {
  if (!has_changes || compat::current_capture(device_) == 0) return;
  throw Error(ErrorDetails{.problem =
                               "The parameters, state or options of an optimizer differ from "
                               "those in the steps before it was captured",
                           .hint = "step once before the capture begins"});
}

bool StepPlan::has_slot_for(const at::Tensor& parameter) const {
  const auto slot = slots_.find(parameter.unsafeGetTensorImpl());
  return slot != slots_.end() && slot->second->has_storage_of(parameter);
}

bool StepPlan::has_other_rules() {
  auto& groups = optimizer_.param_groups();
  for (std::size_t g = 0; g < std::min(groups.size(), rules_.size()); ++g) {
    if (OptionReader(kind_, groups[g].options()).rule() != rules_[g]) return true;
  }
  return false;
}

StepPlan::Readiness StepPlan::rebuild() {
  const at::NoGradGuard no_grad;
  built_ = false;
  ++gradients_version_;
  auto& groups = optimizer_.param_groups();
  const bool was_broken_off = !new_slots_.empty();  // by an exception, for example out of memory
  refuse_in_capture(reload_ || has_other_rules() || was_broken_off);
  if (has_other_rules() || was_broken_off) {
    // Rare enough to wait: the meaning of a count depends on the rule.
    sync();
    reload_ = true;
  }
  if (reload_) {
    slots_.clear();
    new_slots_.clear();
    slot_count_ = 0;
    steps_.reset();
    steps_ahead_ = false;
    ++generation_;
  }
  reload_ = false;
  if (group_sizes_.size() != groups.size()) ++generation_;
  group_sizes_.clear();
  readers_.clear();
  rules_.clear();
  seen_.clear();
  packed_parameters_.clear();
  packed_gradients_.clear();
  slots_with_copies_.clear();
  slots_by_tensor_.clear();
  tensors_.host.clear();
  gradients_.host.clear();

  // Check all of them before creating anything for one.
  bool first = true;
  std::unordered_set<const c10::TensorImpl*> here;
  std::vector<const c10::TensorImpl*> with_images;
  for (auto& group : groups) {
    group_sizes_.push_back(group.params().size());
    readers_.emplace_back(kind_, group.options());
    rules_.push_back(readers_.back().rule());
    for (const at::Tensor& parameter : group.params()) {
      const bool is_new = here.insert(parameter.unsafeGetTensorImpl()).second;
      const at::Tensor& gradient = parameter.unsafeGetTensorImpl()->grad();
      if (!gradient.defined()) continue;
      if (first) device_ = home_of(parameter);
      first = false;
      refuse_in_capture(!has_slot_for(parameter));
      reason_ = is_new ? reason_against(parameter, gradient) : "a parameter that occurs twice";
      if (!reason_.empty()) return Readiness::impossible;
      if (needs_image(parameter)) with_images.push_back(parameter.unsafeGetTensorImpl());
    }
  }
  require_memory_of_their_own(with_images);
  std::vector<Place> places;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      seen_.push_back({.parameter = parameter.unsafeGetTensorImpl()});
      if (!parameter.unsafeGetTensorImpl()->grad().defined()) continue;
      add(g, i);
      places.push_back({WeakTensor(parameter.getIntrusivePtr()), g, i});
    }
  }
  // Remove slots of parameters that the optimizer no longer has.
  std::erase_if(slots_, [&](const auto& entry) { return !here.contains(entry.first); });

  sort_into_segments(std::move(places));
  bring_steps();
  groups_.host.resize(groups.size());
  capture_ = compat::current_capture(device_);
  upload_options(/*all=*/capture_ == 0);
  tensors_.upload(device_, of_graphs_);
  gradients_.upload(device_, of_graphs_);
  blocks_.upload(device_, of_graphs_);
  bundles_.upload(device_, of_graphs_);
  partials_ = at::empty(
      {std::max<int64_t>(blocks(), 1) * static_cast<int64_t>(sizeof(kernels::StepPartial))},
      at::TensorOptions().dtype(at::kByte).device(device_));
  if (capture_ != 0) of_graphs_.memory.push_back(partials_);
  built_ = true;
  return tensors_.host.empty() ? Readiness::no_gradients : Readiness::ready;
}

}  // namespace accelerant::optim::detail
