#include "accelerator/offload/paged_model.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "paging/residency.h"
#include "tensor/storage_move.h"

namespace accelerant::detail {
namespace {

std::vector<paging::UnitPlan> units_of(const torch::nn::Module& module) {
  return paging::plan_units(
      module,
      {.small_parameter = pages_on_every_device() ? 0 : paging::UnitOptions().small_parameter});
}

uint64_t least_room(const std::vector<paging::UnitPlan>& units) {
  const std::vector<uint64_t> bytes = paging::bytes_of_blocks(units);
  return bytes.empty() ? 0 : 3 * std::ranges::max(bytes);
}

}  // namespace

bool& pages_on_every_device() {
  static bool on = false;
  return on;
}

bool has_paged_parameters(const std::vector<at::Tensor>& parameters) {
  return std::ranges::any_of(parameters, paging::is_paged);
}

PagedModel::PagedModel(const torch::nn::Module& module, c10::Device device,
                       std::optional<uint64_t> budget) {
  std::vector<paging::UnitPlan> units = units_of(module);
  std::unordered_set<const c10::StorageImpl*> paged;
  for (const auto& unit : units) {
    for (const auto& named : unit.parameters) {
      paged.insert(named.parameter.storage().unsafeGetStorageImpl());
    }
  }
  StorageMove move(device);
  std::vector<at::Tensor> others;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !StorageMove::can_move(tensor) || is_on(tensor, device) ||
        paged.contains(tensor.storage().unsafeGetStorageImpl())) {
      return;
    }
    move.prepare(tensor);
    others.push_back(tensor);
  };
  for (const at::Tensor& parameter : module.parameters()) add(parameter);
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  const uint64_t room = budget.value_or(least_room(units));
  pager_ = std::make_unique<paging::Pager>(
      std::move(units),
      paging::PagerOptions{
          .device = device, .budget = room, .zero_copy = !pages_on_every_device()});
  for (const at::Tensor& tensor : others) {
    if (!is_on(tensor, device)) move.move(tensor);
  }
}

bool PagedModel::is_needed(const torch::nn::Module& module, std::optional<uint64_t> budget) {
  if (!budget || pages_on_every_device()) return true;
  const std::vector<uint64_t> bytes = paging::bytes_of_blocks(units_of(module));
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}) > *budget;
}

void PagedModel::begin_forward(bool trains, bool completes_window, int64_t backwards) {
  // Several forwards of a step belong to one iteration.
  if (trains && iteration_ && backwards_ == backwards) return;
  iteration_.reset();
  const char* const phase = !trains ? "eval" : completes_window ? "train" : "train, no update";
  iteration_ = std::make_unique<paging::Pager::Iteration>(pager_->begin(phase));
  backwards_ = trains ? backwards : -1;
}

}  // namespace accelerant::detail
