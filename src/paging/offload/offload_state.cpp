#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/paging/offload.h"
#include "core/texts.h"
#include "paging/offload/offloaded_model.h"
#include "paging/residency.h"

namespace accelerant {

bool has_offloaded_params(const ModelArgument& model) {
  const torch::nn::Module& module = model.module();
  return std::ranges::any_of(module.parameters(), paging::is_paged) ||
         std::ranges::any_of(module.buffers(), paging::is_paged);
}

void verify_offload(const ModelArgument& model) {
  const std::vector<std::string> strays = paging::OffloadedModel::strays_of(model.module());
  if (!strays.empty()) {
    throw Error(ErrorDetails{
        .problem = "Weights of an offloaded model do not come and go any more",
        .expected = "weights that stay on their device and keep their type",
        .got = "new memory for " + list_text(strays, 5),
        .hint =
            "the model was moved with Module::to(), or a weight was replaced by set_data(): call "
            "undo_offload() before that, and offload the model again afterwards"});
  }
  for (const auto& offloaded : paging::OffloadedModel::of(model.module())) {
    offloaded->pager().verify();
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
