#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "accelerant/paging/empty_weights.h"
#include "accelerant/paging/offload.h"
#include "core/files.h"
#include "paging/offload/files.h"
#include "paging/offload/homes.h"
#include "store/model_folder.h"
#include "tensor/tensor_dtype.h"

namespace accelerant {
namespace {

bool has_model(const std::string& folder) {
  const auto exists = [&](const char* name) {
    return checkpoint::find_model_file(folder, name).has_value();
  };
  return exists("model.safetensors") || exists("model.safetensors.index.json");
}

// Those that safetensors files can hold.
std::vector<paging::NamedParameter> storable(const std::vector<paging::NamedParameter>& tensors) {
  std::vector<paging::NamedParameter> result;
  std::ranges::copy_if(tensors, std::back_inserter(result), [](const auto& named) {
    return named.parameter.layout() == at::kStrided && named.parameter.has_storage() &&
           format_dtype(named.parameter.scalar_type()).has_value();
  });
  return result;
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
  request.stored = known;
  paging::Division division = paging::divide(module, request);
  // The whole model, so that an empty one finds all its values there. Buffers of an empty one are
  // those of its constructor, and not to replace what the folder has.
  std::vector<paging::NamedParameter> also;
  if (empty_tensors(module).empty()) also = storable(division.others);
  request.files_of = [&](std::vector<paging::NamedParameter> parameters) {
    parameters.insert(parameters.end(), also.begin(), also.end());
    return paging::put_on_disk(parameters, known, folder);
  };
  paging::OffloadedModel::attach(paging::plan_offload(std::move(division), request));
}

}  // namespace accelerant
