#include "paging/offload/homes.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerant/core/error.h"
#include "compat/device.h"
#include "core/texts.h"
#include "paging/device_map/module_tree.h"
#include "paging/device_map/presence.h"
#include "paging/key_alias.h"
#include "paging/offload/files.h"
#include "paging/offload/peer_memory.h"
#include "paging/residency.h"

namespace accelerant::paging {
namespace {

using torch::nn::Module;

// As in UnitOptions: smaller ones are not worth a transfer.
constexpr int64_t kLargeBuffer = 100'000;

// The paths of modules of these classes, without those inside of others.
std::vector<std::string> instances_of(const Module& module, const std::vector<std::string>& classes,
                                      const std::string& path = "") {
  if (classes.empty()) return {};
  if (!path.empty() && is_any_class(module.name(), classes)) return {path};
  std::vector<std::string> paths;
  for (const auto& child : module.named_children()) {
    for (std::string& found : instances_of(*child.value(), classes, below(path, child.key()))) {
      paths.push_back(std::move(found));
    }
  }
  return paths;
}

// Large parameters by the unit that they come with.
std::vector<UnitPlan> units_of(const Module& module, const PlacementRequest& request) {
  std::vector<UnitPlan> planned = plan_units(module);
  const std::vector<std::string> paths = instances_of(module, request.preload_module_classes);
  std::vector<UnitPlan> units;
  std::map<std::string, std::size_t> by_path;
  for (UnitPlan& plan : planned) {
    UnitPlan others{.name = plan.name};
    for (NamedParameter& named : plan.parameters) {
      const auto path = std::ranges::find_if(
          paths, [&](const std::string& each) { return named.name.starts_with(each + "."); });
      if (path == paths.end()) {
        others.parameters.push_back(std::move(named));
        continue;
      }
      const auto [entry, is_new] = by_path.try_emplace(*path, units.size());
      if (is_new) units.push_back({.name = "all of " + *path});
      units[entry->second].parameters.push_back(std::move(named));
    }
    if (!others.parameters.empty()) units.push_back(std::move(others));
  }
  if (!request.offload_buffers) return units;
  std::unordered_set<const c10::StorageImpl*> known;
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || buffer.layout() != at::kStrided || buffer.numel() <= kLargeBuffer ||
        !known.insert(storage_of(buffer)).second) {
      continue;
    }
    units.push_back({.name = "buffer " + item.key(), .parameters = {{item.key(), buffer}}});
  }
  return units;
}

std::string suffix_of(const Home& home) {
  switch (home.kind) {
    case Home::Kind::host:
      return "host memory";
    case Home::Kind::file:
      return "disk";
    default:
      return home.device.str();
  }
}

// Parameters that live here are left out. Tied parameters live where the first one does, in its unit.
std::vector<HomedUnit> by_home(std::vector<UnitPlan> units, const HomeOf& home_of) {
  constexpr std::size_t nowhere = SIZE_MAX;
  std::vector<HomedUnit> result;
  std::unordered_map<const c10::StorageImpl*, std::size_t> owners;  // indices in `result`
  for (UnitPlan& unit : units) {
    const std::size_t first = result.size();
    for (NamedParameter& named : unit.parameters) {
      const auto [owner, is_new] = owners.try_emplace(storage_of(named.parameter), nowhere);
      if (is_new) {
        const Home home = home_of(named.name);
        if (home.kind == Home::Kind::here) continue;
        std::size_t place = first;
        while (place < result.size() && result[place].home != home) ++place;
        if (place == result.size()) result.push_back({.plan = {.name = unit.name}, .home = home});
        owner->second = place;
      }
      if (owner->second != nowhere) {
        result[owner->second].plan.parameters.push_back(std::move(named));
      }
    }
    if (result.size() <= first + 1) continue;
    for (std::size_t i = first; i < result.size(); ++i) {
      result[i].plan.name += " (" + suffix_of(result[i].home) + ")";
    }
  }
  return result;
}

// The unit in use, the one before it, which work that is queued may still use, and those that are
// on their way.
uint64_t default_budget(const std::vector<UnitPlan>& units, int64_t prefetch) {
  const std::vector<uint64_t> bytes = bytes_of_blocks(units);
  const uint64_t largest = bytes.empty() ? 0 : std::ranges::max(bytes);
  const auto ahead = static_cast<uint64_t>(std::max<int64_t>(prefetch, 0));
  return largest * (2 + std::min<uint64_t>(ahead, units.size()));
}

void require_values(const std::vector<NamedParameter>& tensors) {
  std::vector<std::string> without;
  for (const NamedParameter& named : empty_ones(tensors)) without.push_back(named.name);
  if (without.empty()) return;
  throw Error(ErrorDetails{
      .problem = "The model cannot be offloaded",
      .expected = "values for all parameters and buffers",
      .got = c10::str(counted(without.size(), "tensor"),
                      " on the meta device: ", list_text(without, 5)),
      .hint = "use load_checkpoint_and_dispatch(), or materialize() the model and load it first"});
}

bool fills_its_memory(const at::Tensor& parameter) {
  return parameter.is_contiguous() && parameter.nbytes() == storage_of(parameter)->nbytes();
}

// A file holds a tensor's elements in their order, and nothing between them. So a parameter gets
// memory of its own, unless others share what it has and would not any more.
void own_whole_memory(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, const NamedParameter*> owners;
  for (const NamedParameter& named : parameters) {
    const NamedParameter*& owner =
        owners.try_emplace(storage_of(named.parameter), &named).first->second;
    const bool is_other = !owner->parameter.is_same(named.parameter);
    if (!is_other || (fills_its_memory(named.parameter) && fills_its_memory(owner->parameter))) {
      continue;
    }
    throw Error(ErrorDetails{
        .problem = "The model cannot be offloaded to files",
        .expected = "parameters that share all of their memory in the same order, or none",
        .got = c10::str(owner->name, " and ", named.name, ", of which one is a view of the other"),
        .hint = "tie weights by registering the same tensor under both names, or place them in "
                "host memory"});
  }
  for (const NamedParameter& named : parameters) {
    at::Tensor parameter = named.parameter;
    if (parameter.is_meta() || fills_its_memory(parameter)) continue;
    parameter.set_data(parameter.detach().clone(at::MemoryFormat::Contiguous));
  }
}

void set_sources(std::vector<HomedUnit>& units, const PlacementRequest& request) {
  std::vector<NamedParameter> in_files;
  for (const HomedUnit& unit : units) {
    if (unit.home.kind == Home::Kind::file) {
      own_whole_memory(unit.plan.parameters);
      in_files.insert(in_files.end(), unit.plan.parameters.begin(), unit.plan.parameters.end());
    } else {
      require_values(unit.plan.parameters);
    }
  }
  if (!in_files.empty()) {
    const auto files = std::make_shared<ModelFiles>(request.files_of(in_files));
    for (HomedUnit& unit : units) {
      if (unit.home.kind != Home::Kind::file) continue;
      unit.plan.source = std::make_shared<MappedFile>(files);
    }
  }
  for (HomedUnit& unit : units) {
    if (unit.home.kind != Home::Kind::device) continue;
    unit.plan.source = PeerMemory::holding(unit.plan, unit.home.device);
  }
}

}  // namespace

Division divide(const Module& module, const PlacementRequest& request) {
  require_not_offloaded(module);
  Division division{.units = by_home(units_of(module, request), request.home_of)};
  std::unordered_set<const c10::StorageImpl*> away;
  for (const HomedUnit& unit : division.units) {
    for (const NamedParameter& named : unit.plan.parameters)
      away.insert(storage_of(named.parameter));
  }
  const auto add_others = [&](const auto& items) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      const bool is_away = tensor.has_storage() && away.contains(storage_of(tensor));
      if (!is_away) division.others.push_back({item.key(), tensor});
    }
  };
  add_others(module.named_parameters());
  add_others(module.named_buffers());
  return division;
}

OffloadPlan plan_offload(Division division, const PlacementRequest& request) {
  OffloadPlan plan;
  if (request.stored) {
    plan.values = values_in(*request.stored, empty_ones(division.others));
  } else {
    require_values(division.others);
  }
  set_sources(division.units, request);
  plan.others = std::move(division.others);
  for (HomedUnit& unit : division.units) plan.units.push_back(std::move(unit.plan));
  plan.pager = {
      .device = request.execution_device,
      .budget = request.budget ? *request.budget : default_budget(plan.units, request.prefetch),
      .prefetch = request.prefetch,
      .zero_copy = request.zero_copy};
  return plan;
}

std::vector<NamedParameter> empty_ones(const std::vector<NamedParameter>& tensors) {
  std::vector<NamedParameter> empty;
  std::ranges::copy_if(tensors, std::back_inserter(empty),
                       [](const NamedParameter& named) { return named.parameter.is_meta(); });
  return empty;
}

c10::Device present_device(c10::Device device) {
  return present_device(device, "A model cannot be placed on " + device.str());
}

c10::Device execution_device_of(const Module& module, std::optional<c10::Device> wish) {
  if (wish) return present_device(*wish);
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.defined() || parameter.is_meta()) continue;
    if (!parameter.is_cpu()) return parameter.device();
    break;
  }
  const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
  if (accelerator && compat::is_present(*accelerator)) {
    return present_device(c10::Device(*accelerator));
  }
  return c10::Device(c10::kCPU);
}

void require_not_offloaded(const Module& module) {
  if (!has_offloaded_params(module) && OffloadedModel::of(module).empty()) return;
  throw Error(ErrorDetails{.problem = "The model cannot be offloaded",
                           .expected = "an ordinary model",
                           .got = "one that is offloaded already, or in part",
                           .hint = "call undo_offload() first"});
}

}  // namespace accelerant::paging
