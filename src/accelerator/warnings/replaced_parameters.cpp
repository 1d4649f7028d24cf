#include "accelerator/warnings/replaced_parameters.h"

#include <c10/util/StringUtil.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "core/texts.h"

namespace accelerant::detail {

// Either alone is common: tensors outside any model, and parameters that no optimizer trains.
// Together they mean that one has taken the place of the other.
void warn_if_replaced(Core& core, torch::optim::Optimizer& optimizer) {
  constexpr std::size_t shown = 5;
  if (!core.warnings.is_open(&WarningOptions::replaced_parameters)) return;
  const auto optimizers = core.optimizers.all();
  const auto is_owned = [&](const at::Tensor& parameter) {
    return std::ranges::any_of(optimizers, [&](const auto& one) { return one->owns(parameter); });
  };
  std::unordered_set<const c10::TensorImpl*> in_models;
  std::vector<std::string> untrained;
  for (const auto& model : core.models.all()) {
    // As the module is now, which prepare() may not have seen.
    for (const auto& item : model->module().named_parameters()) {
      const at::Tensor& parameter = item.value();
      in_models.insert(parameter.unsafeGetTensorImpl());
      if (parameter.requires_grad() && !is_owned(parameter)) untrained.push_back(item.key());
    }
  }
  if (untrained.empty()) return;
  const bool has_others = any_parameter(optimizer, [&](const at::Tensor& parameter) {
    return !in_models.contains(parameter.unsafeGetTensorImpl());
  });
  if (!has_others) return;
  core.warnings.say(
      &WarningOptions::replaced_parameters,
      c10::str("No prepared optimizer trains ", list_text(untrained, shown),
               ", and an optimizer has parameters that are in no prepared model: was a layer "
               "replaced after the optimizer was made? Make the optimizer from net->parameters() "
               "when the model is complete, and prepare both after that"));
}

}  // namespace accelerant::detail
