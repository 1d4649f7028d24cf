#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <optional>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/paging/offload.h"
#include "paging/offload/dispatch.h"
#include "paging/offload/files.h"
#include "paging/offload/homes.h"
#include "tensor/module_state.h"
#include "tensor/storage_move.h"

namespace accelerant {
namespace {

c10::Device device_in_map(const Placement& placement) {
  const std::optional<c10::Device> device = placement.device();
  if (device && !device->is_meta()) return paging::present_device(*device);
  throw Error(ErrorDetails{.problem = "A model cannot be dispatched to " + placement.text(),
                           .expected = "GPUs, \"cpu\" or \"disk\"",
                           .got = "a place without values",
                           .hint = "use \"disk\" for weights that stay in files"});
}

// The one device of a map that needs no paging.
std::optional<c10::Device> only_device(const DeviceMap& device_map) {
  std::optional<Placement> only;
  for (const auto& [name, placement] : device_map) {
    if (only && !(*only == placement)) return std::nullopt;
    only = placement;
  }
  if (!only || only->is_disk()) return std::nullopt;
  return device_in_map(*only);
}

void move_whole(const torch::nn::Module& module, c10::Device device) {
  StorageMove move(device);
  std::vector<at::Tensor> tensors;
  for (const auto& item : state_of(module)) {
    const at::Tensor& tensor = item.value();
    if (!StorageMove::can_move(tensor) || is_on(tensor, device)) continue;
    if (tensor.is_meta()) {
      throw Error(ErrorDetails{.problem = "The model cannot be dispatched",
                               .expected = "values for all parameters and buffers",
                               .got = "'" + item.key() + "' on the meta device",
                               .hint = "use load_checkpoint_and_dispatch()"});
    }
    tensors.push_back(tensor);
  }
  for (const at::Tensor& tensor : tensors) move.prepare(tensor);
  for (const at::Tensor& tensor : tensors) {
    if (!is_on(tensor, device)) move.move(tensor);
  }
}

}  // namespace

c10::Device paging::main_device_of(const DeviceMap& device_map, std::optional<c10::Device> wish) {
  if (wish) return present_device(*wish);
  for (const auto& [name, placement] : device_map) {
    if (!placement.is_disk() && !placement.is_cpu()) return device_in_map(placement);
  }
  return c10::Device(c10::kCPU);
}

paging::HomeOf paging::homes_in(const DeviceMap& device_map, c10::Device main_device) {
  return [&device_map, main_device](const std::string& name) -> Home {
    const Placement placement = device_map.placement_of(name).value_or(main_device);
    if (placement.is_disk()) return {.kind = Home::Kind::file};
    const c10::Device device = device_in_map(placement);
    if (device == main_device) return {.kind = Home::Kind::here};
    if (device.is_cpu()) return {.kind = Home::Kind::host};
    return {.kind = Home::Kind::device, .device = device};
  };
}

void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map,
                    const DispatchOptions& options) {
  check_device_map(module, device_map);
  paging::require_not_offloaded(module);
  const std::optional<c10::Device> only = only_device(device_map);
  if (only && (!options.main_device || paging::present_device(*options.main_device) == *only)) {
    return move_whole(module, *only);
  }
  if (device_map.uses("disk") && options.offload_folder.empty() && options.offload_index.empty()) {
    std::string names;
    for (const auto& [name, placement] : device_map) {
      if (placement.is_disk()) names += (names.empty() ? "'" : ", '") + name + "'";
    }
    throw Error(ErrorDetails{
        .problem = "We need an `offload_folder` to dispatch this model according to this "
                   "`device_map`, the following submodules need to be offloaded: " +
                   names,
        .hint = "set offload_folder, or offload_index if the weights are in files already"});
  }
  paging::PlacementRequest request = paging::request_of(options);
  request.execution_device = paging::main_device_of(device_map, options.main_device);
  request.home_of = paging::homes_in(device_map, request.execution_device);
  paging::FileTensors known = paging::tensors_in_folder(options.offload_folder);
  for (auto& [name, tensor] : paging::tensors_of_index(options.offload_index)) {
    known.insert_or_assign(name, std::move(tensor));
  }
  request.files_of = [&](const std::vector<paging::NamedParameter>& parameters) {
    return paging::put_on_disk(parameters, known, options.offload_folder);
  };
  request.stored = known;
  paging::OffloadedModel::attach(paging::plan_offload(paging::divide(module, request), request));
}

}  // namespace accelerant
