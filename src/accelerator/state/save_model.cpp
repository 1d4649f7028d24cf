#include "accelerant/checkpoint/models.h"

#include <nlohmann/json.hpp>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/dist/collectives.h"

namespace accelerant {

SavedModel Accelerator::save_model(const ModelBase& model, const std::string& folder,
                                   const SaveModelOptions& options) const {
  require_own(model);
  const auto span = world().timeline()->span(Phase::save, "save_model");
  // The others come to their turn when the main process has saved, or get its failure.
  auto saved = dist::main_process_first(world(), [&] {
    return is_main_process() ? accelerant::save_model(model, folder, options) : SavedModel();
  });
  nlohmann::json told = {saved.files, saved.total_size};
  dist::broadcast_object(world(), told);
  return {.files = told[0].get<std::vector<std::string>>(), .total_size = told[1].get<uint64_t>()};
}

}  // namespace accelerant
