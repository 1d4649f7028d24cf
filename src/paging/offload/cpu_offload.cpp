#include <torch/nn/module.h>

#include "accelerant/paging/offload.h"
#include "paging/offload/homes.h"

namespace accelerant {

void cpu_offload(torch::nn::Module& module, const OffloadOptions& options) {
  paging::PlacementRequest request = paging::request_of(options);
  request.execution_device = paging::execution_device_of(module, options.execution_device);
  request.home_of = [](const std::string&) {
    return paging::Home{.kind = paging::Home::Kind::host};
  };
  paging::OffloadedModel::attach(paging::plan_offload(paging::divide(module, request), request));
}

}  // namespace accelerant
