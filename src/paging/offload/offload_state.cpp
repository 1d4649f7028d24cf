#include <torch/nn/module.h>

#include <algorithm>

#include "accelerant/paging/offload.h"
#include "paging/offload/offloaded_model.h"
#include "paging/residency.h"

namespace accelerant {

bool has_offloaded_params(const ModelArgument& model) {
  return std::ranges::any_of(model.module().parameters(), paging::is_paged);
}

void verify_offload(const ModelArgument& model) {
  for (const auto& offloaded : paging::OffloadedModel::of(model.module())) {
    offloaded->verify();
  }
}

OffloadStatistics offload_statistics(const ModelArgument& model) {
  OffloadStatistics sum;
  for (const auto& offloaded : paging::OffloadedModel::of(model.module())) {
    const paging::Pager& pager = offloaded->pager();
    const paging::PagerStatistics one = pager.statistics();
    sum.units += pager.layouts().size();
    for (const paging::UnitLayout& layout : pager.layouts()) sum.offloaded_bytes += layout.bytes;
    sum.in_place_bytes += one.lent_bytes;
    const uint64_t budget = pager.options().budget;
    sum.budget_bytes += std::min(budget, UINT64_MAX - sum.budget_bytes);
    sum.resident_bytes += one.resident_bytes;
    sum.peak_bytes += one.peak_bytes;
    sum.fetches += one.fetches;
    sum.fetched_bytes += one.fetched_bytes;
    sum.misses += one.misses;
  }
  return sum;
}

void undo_offload(torch::nn::Module& module, std::optional<c10::Device> device) {
  for (const auto& offloaded : paging::OffloadedModel::of(module)) offloaded->undo(device);
}

}  // namespace accelerant
