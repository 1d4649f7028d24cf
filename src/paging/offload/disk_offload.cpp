#include <torch/nn/module.h>

#include <utility>

#include "accelerant/paging/offload.h"
#include "core/files.h"
#include "paging/offload/files.h"
#include "paging/offload/homes.h"
#include "store/model_folder.h"

namespace accelerant {
namespace {

bool has_model(const std::string& folder) {
  const auto exists = [&](const char* name) {
    return checkpoint::find_model_file(folder, name).has_value();
  };
  return exists("model.safetensors") || exists("model.safetensors.index.json");
}

}  // namespace

paging::FileTensors paging::tensors_in_folder(const std::string& folder) {
  if (folder.empty() || !is_folder(folder)) return {};
  FileTensors tensors;
  const std::string own = join_path(folder, kOffloadFile);
  if (path_exists(own)) tensors = tensors_of_file(own);
  if (has_model(folder)) {
    for (auto& [name, tensor] : tensors_of_model(folder)) {
      tensors.insert_or_assign(name, std::move(tensor));
    }
  }
  return tensors;
}

void disk_offload(torch::nn::Module& module, const std::string& folder,
                  const OffloadOptions& options) {
  paging::PlacementRequest request = paging::request_of(options);
  request.execution_device = paging::execution_device_of(module, options.execution_device);
  request.home_of = [](const std::string&) {
    return paging::Home{.kind = paging::Home::Kind::file};
  };
  const paging::FileTensors known = paging::tensors_in_folder(folder);
  request.files_of = [&](const std::vector<paging::NamedParameter>& parameters) {
    return paging::put_on_disk(parameters, known, folder);
  };
  paging::Division division = paging::divide(module, request);
  paging::fill_from(known, paging::empty_ones(division.others), request.execution_device);
  paging::OffloadedModel::attach(paging::plan_offload(std::move(division), request));
}

}  // namespace accelerant
