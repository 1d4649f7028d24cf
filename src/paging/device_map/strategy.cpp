#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "accelerant/core/error.h"
#include "accelerant/paging/device_map.h"
#include "paging/device_map/module_sizes.h"
#include "paging/device_map/module_tree.h"

namespace accelerant {
namespace {

constexpr std::array<std::string_view, 4> strategies = {"auto", "balanced", "balanced_low_0",
                                                        "sequential"};

void require_strategy(const std::string& name) {
  if (std::ranges::find(strategies, name) != strategies.end()) return;
  throw Error(ErrorDetails{
      .problem = "no such device map",
      .expected = "'auto', 'balanced', 'balanced_low_0' or 'sequential'",
      .got = "'" + name + "'",
      .hint = "to put the whole model on one device, write {{\"\", \"cpu\"}} or {{\"\", 0}}"});
}

// Where the first tensor of a module is that has a placement.
std::optional<Placement> first_placement(const paging::ModuleTree& module, const std::string& name,
                                         const DeviceMap& map) {
  for (const auto& tensor : paging::tensor_names(module)) {
    if (const auto place = map.placement_of(paging::below(name, tensor))) return place;
  }
  return std::nullopt;
}

// Buffers of a module that was divided go where the rest of it begins.
void add_buffers(const paging::ModuleTree& module, const std::string& name, DeviceMap& map) {
  for (const auto& buffer : module.buffers) {
    const std::string full = paging::below(name, buffer.name);
    if (map.placement_of(full)) continue;
    if (const auto place = first_placement(module, name, map)) map.set(full, *place);
  }
  for (const auto& child : module.children) {
    add_buffers(child, paging::below(name, child.name), map);
  }
}

}  // namespace

DeviceMap make_device_map(const ModelArgument& model, const std::string& strategy,
                          const DeviceMapOptions& options) {
  require_strategy(strategy);
  DeviceMapOptions chosen = options;
  if (strategy != "sequential") {
    chosen.max_memory =
        get_balanced_memory(model, {.max_memory = options.max_memory,
                                    .no_split_module_classes = options.no_split_module_classes,
                                    .dtype = options.dtype,
                                    .special_dtypes = options.special_dtypes,
                                    .low_zero = strategy == "balanced_low_0"});
  }
  DeviceMap map = infer_auto_device_map(model, chosen);
  add_buffers(paging::tree_of(model.module()), "", map);
  return map;
}

// --- DeviceMapChoice -----------------------------------------------------------------------------

DeviceMapChoice::DeviceMapChoice(std::string strategy) : strategy_(std::move(strategy)) {
  require_strategy(strategy_);
}

DeviceMap DeviceMapChoice::resolve(const ModelArgument& model,
                                   const DeviceMapOptions& options) const {
  if (!strategy_.empty()) return make_device_map(model, strategy_, options);
  if (!map_.empty()) check_device_map(model, map_);
  return map_;
}

}  // namespace accelerant
