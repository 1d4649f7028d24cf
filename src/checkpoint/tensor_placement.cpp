#include "checkpoint/tensor_placement.h"

#include <algorithm>
#include <optional>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "checkpoint/shared_tensors.h"
#include "core/texts.h"
#include "paging/device_map/presence.h"
#include "tensor/storage_move.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kMostPlaces = 20;  // in a message

// That of the first name that has one.
std::optional<Placement> placement_of(const std::vector<std::string>& names,
                                      const DeviceMap& device_map) {
  for (const std::string& name : names) {
    if (const auto place = device_map.placement_of(name)) return place;
  }
  return std::nullopt;
}

void warn_if_torn_apart(const std::vector<std::string>& names, const DeviceMap& device_map) {
  std::vector<std::string> texts;
  bool is_torn = false;
  const auto first = placement_of(names, device_map);
  for (const std::string& name : names) {
    const auto place = device_map.placement_of(name);
    if (!place) continue;
    texts.push_back(name + ": " + place->text());
    is_torn = is_torn || *place != *first;
  }
  if (!is_torn) return;
  log(LogLevel::warning,
      "Tied parameters are on different devices: " + list_text(texts) + ". They all go to " +
          first->text() +
          ". Place them together, or take a map from make_device_map(net, \"auto\").");
}

[[noreturn]] void refuse_placements(const char* expected, const std::vector<std::string>& names,
                                    const char* hint) {
  throw Error(ErrorDetails{.problem = "this device map cannot be used for loading",
                           .expected = expected,
                           .got = list_text(names, kMostPlaces),
                           .hint = hint});
}

// By Accelerate's rule, which looks for the name anywhere.
bool is_kept_in_float32(const std::string& name, const LoadModelOptions& options) {
  return options.dtype == c10::kHalf &&
         std::ranges::any_of(options.keep_in_fp32_modules, [&](const std::string& kept) {
           return name == kept || name.find(kept + ".") != std::string::npos;
         });
}

}  // namespace

c10::ScalarType loaded_type(const std::vector<std::string>& names, const at::Tensor& tensor,
                            const LoadModelOptions& options) {
  if (!options.dtype || !tensor.is_floating_point()) return tensor.scalar_type();
  const bool is_kept = std::ranges::any_of(
      names, [&](const std::string& name) { return is_kept_in_float32(name, options); });
  return is_kept ? c10::kFloat : *options.dtype;
}

bool is_on_disk(const std::vector<std::string>& names, const DeviceMap& device_map) {
  const auto place = placement_of(names, device_map);
  return place && place->is_disk();
}

void require_placements(const StateDict& state, const TensorsByName& files,
                        const LoadModelOptions& options) {
  const DeviceMap& device_map = options.device_map;
  if (device_map.empty()) return;
  std::vector<std::string> unplaced;
  std::vector<std::string> on_disk;
  std::vector<std::string> on_meta;
  std::vector<std::string> elsewhere;
  for (const auto& names : names_of_each(state)) {
    warn_if_torn_apart(names, device_map);
    if (std::ranges::none_of(names,
                             [&](const std::string& name) { return files.find(name).has_value(); }))
      continue;
    const auto place = placement_of(names, device_map);
    if (!place) {
      unplaced.push_back(names.front());
    } else if (place->is_disk()) {
      on_disk.push_back(names.front());
    } else if (place->device()->is_meta()) {
      on_meta.push_back(names.front());
    } else if (!paging::is_present(*place->device())) {
      elsewhere.push_back(names.front() + " on " + place->text());
    }
  }
  if (!unplaced.empty()) {
    throw Error(list_text(unplaced, kMostPlaces) + " doesn't have any device set.",
                "Add the modules to the device map, or an entry with the name \"\", which means "
                "everything else.");
  }
  if (!on_disk.empty() && options.offload_folder.empty()) {
    throw Error(ErrorDetails{
        .problem = "At least one of the model submodule will be offloaded to disk, please pass "
                   "along an `offload_folder`",
        .expected = "one for weights on \"disk\"",
        .got = "none for " + list_text(on_disk, kMostPlaces),
        .hint = "set offload_folder, or call load_checkpoint_and_dispatch(), which uses weights "
                "from the checkpoint's own files"});
  }
  if (!on_meta.empty()) {
    refuse_placements("devices with memory", on_meta, "these are placed on 'meta'");
  }
  if (!elsewhere.empty()) {
    refuse_placements("devices of this machine", elsewhere,
                      "a map for this machine comes from infer_auto_device_map()");
  }
}

void require_memory(const std::vector<TensorCopy>& copies, const DeviceMap& device_map) {
  if (!device_map.empty()) return;
  std::vector<std::string> empty;
  for (const auto& copy : copies) {
    if (copy.target.is_meta()) empty.push_back(copy.stored->name);
  }
  if (empty.empty()) return;
  throw Error(ErrorDetails{
      .problem = "the model has tensors on the meta device, where values cannot be loaded to",
      .expected = "tensors with memory",
      .got = list_text(empty, kMostPlaces),
      .hint = "call accelerant::materialize() before, or say in device_map where they go"});
}

void place_tensors(const StateDict& state, const LoadModelOptions& options) {
  if (!options.dtype && options.device_map.empty()) return;
  for (const auto& names : names_of_each(state)) {
    const at::Tensor& tensor = state[names.front()];
    const auto place = placement_of(names, options.device_map);
    at::TensorOptions wanted = tensor.options().dtype(loaded_type(names, tensor, options));
    const c10::Device device = !place             ? tensor.device()
                               : place->is_disk() ? c10::Device(c10::kMeta)
                                                  : *place->device();
    // From the meta device nothing can be copied, and set_data() leads neither from nor to it.
    const bool changes_memory = device != tensor.device() && (device.is_meta() || tensor.is_meta());
    if (!changes_memory) wanted = wanted.device(device);
    const at::Tensor placed = tensor.detach().to(wanted);
    for (const std::string& name : names) at::Tensor(state[name]).set_data(placed);
    if (!changes_memory) continue;
    StorageMove memory(device);
    for (const std::string& name : names) {
      if (!is_on(state[name], device)) memory.move(state[name]);
    }
  }
}

}  // namespace accelerant::checkpoint
