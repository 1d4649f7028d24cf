#include <torch/nn/module.h>

#include <limits>

#include "accelerant/paging/offload.h"
#include "paging/offload/homes.h"

namespace accelerant {

void OffloadHook::offload() const {
  if (const auto model = model_.lock()) model->leave_device();
}

void OffloadHook::remove() const {
  if (const auto model = model_.lock()) model->undo(std::nullopt);
}

OffloadHook cpu_offload_with_hook(torch::nn::Module& module, const HookedOffloadOptions& options) {
  paging::PlacementRequest request;
  request.execution_device = paging::execution_device_of(module, options.execution_device);
  request.home_of = [](const std::string&) {
    return paging::Home{.kind = paging::Home::Kind::host};
  };
  request.budget = std::numeric_limits<uint64_t>::max();
  request.zero_copy = options.zero_copy;
  paging::OffloadPlan plan = paging::plan_offload(paging::divide(module, request), request);
  const auto self = std::make_shared<std::weak_ptr<paging::OffloadedModel>>();
  plan.pager.before_use = [self, previous = options.prev_module_hook] {
    if (const auto model = self->lock()) model->note_use();
    if (previous) previous->offload();
  };
  const std::shared_ptr<paging::OffloadedModel> model =
      paging::OffloadedModel::attach(std::move(plan));
  *self = model;
  return OffloadHook(model);
}

}  // namespace accelerant
