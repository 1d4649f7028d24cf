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

// A parameter that a model uses gets gradients, and one that it has lost gets none. Either alone is
// common: tensors outside of any model, and parameters that no optimizer trains. Together they mean
// that one has taken the place of the other.
void warn_if_replaced(Core& core, torch::optim::Optimizer& optimizer) {
  constexpr std::size_t shown = 5;
  if (!core.warnings.is_open(&WarningOptions::replaced_parameters)) return;
  std::unordered_set<const c10::TensorImpl*> owned;
  for (const auto& one : core.optimizers.all()) {
    for_each_parameter(one->optimizer(), [&](const at::Tensor& parameter) {
      owned.insert(parameter.unsafeGetTensorImpl());
    });
  }
  std::unordered_set<const c10::TensorImpl*> in_models;
  std::vector<std::string> untrained;
  for (const auto& model : core.models.all()) {
    // As the module is now, which prepare() may not have seen.
    for (const auto& item : model->module().named_parameters()) {
      const at::Tensor& parameter = item.value();
      in_models.insert(parameter.unsafeGetTensorImpl());
      const bool is_owned = owned.contains(parameter.unsafeGetTensorImpl());
      if (parameter.grad().defined() && !is_owned) untrained.push_back(item.key());
    }
  }
  if (untrained.empty()) return;
  const bool has_lost = any_parameter(optimizer, [&](const at::Tensor& parameter) {
    return !parameter.grad().defined() && !in_models.contains(parameter.unsafeGetTensorImpl());
  });
  if (!has_lost) return;
  core.warnings.say(
      &WarningOptions::replaced_parameters,
      c10::str("No prepared optimizer trains ", list_text(untrained, shown),
               ", and an optimizer has parameters that are in no prepared model: was a layer "
               "replaced after the optimizer was made? Make the optimizer from net->parameters() "
               "when the model is complete, and prepare both after that"));
}

}  // namespace accelerant::detail
