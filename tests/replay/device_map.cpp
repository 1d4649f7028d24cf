// Device maps of a model that is described as data.
//
// Input: {"modules": {"name": "", "parameters": {"weight": [[3, 4], "float32"]}, "buffers": {...},
//         "children": [...]}, "types": {"layers.0": "Block"}, "tied": [["a.weight", "b.weight"]],
//         "max_memory": {"0": 1000, "cpu": "2KB"}, "no_split": ["Block"], "dtype": null,
//         "special_dtypes": {"a.weight": "float16"}, "offload_buffers": false,
//         "fallback_allocation": false, "clean_result": true}. A child {"name": "b", "same_as": "a"}
//         is the module named "a" once more. All but "modules" may be missing. "clean" is a device
//         map to be cleaned, "check" one to be checked.
// Output: {"device_map": {"layers.0": 0, "head": "disk"}, "sizes", "buffer_bytes", "largest",
//         "tied", "balanced", "balanced_low_0", "messages", "cleaned", "check"}, as Accelerate's
//         functions give for the same model.
//
// The order of the parameters in a module matters, so documents are parsed in order.
#include <accelerant/paging/device_map.h>

#include <memory>
#include <string>
#include <vector>

#include "refusal.h"
#include "support/gathered_log.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using accelerant::DeviceMap;
using accelerant::DeviceMapOptions;
using accelerant::MaxMemory;
using accelerant::MemorySize;
using accelerant::Placement;
using nlohmann::json;
using nlohmann::ordered_json;

// --- The model -----------------------------------------------------------------------------------

class DataModule : public torch::nn::Module {
 public:
  explicit DataModule(const std::string& class_name) : torch::nn::Module(class_name) {}

  void replace_parameter(const std::string& name, const at::Tensor& other) {
    parameters_[name] = other;
  }
};

using Modules = std::map<std::string, std::shared_ptr<DataModule>>;  // by full name

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

at::Tensor tensor_of(const ordered_json& shape_and_type) {
  return torch::empty(
      shape_and_type.at(0).get<std::vector<int64_t>>(),
      at::TensorOptions(at::kMeta).dtype(type_from(shape_and_type.at(1).get<std::string>())));
}

std::shared_ptr<DataModule> module_of(const ordered_json& data, const std::string& name,
                                      const json& types, Modules& modules) {
  auto module = std::make_shared<DataModule>(types.value(name, std::string("Module")));
  modules[name] = module;
  const ordered_json parameters = data.value("parameters", ordered_json::object());
  for (const auto& [key, value] : parameters.items()) {
    module->register_parameter(key, tensor_of(value), /*requires_grad=*/false);
  }
  const ordered_json buffers = data.value("buffers", ordered_json::object());
  for (const auto& [key, value] : buffers.items()) {
    module->register_buffer(key, tensor_of(value));
  }
  for (const auto& child : data.value("children", ordered_json::array())) {
    if (child.contains("same_as")) continue;
    const auto key = child.at("name").get<std::string>();
    module->register_module(key, module_of(child, join(name, key), types, modules));
  }
  return module;
}

// Those that are "same_as" another one, when all others exist.
void add_repeated_modules(const ordered_json& data, const std::string& name,
                          const Modules& modules) {
  for (const auto& child : data.value("children", ordered_json::array())) {
    const auto key = child.at("name").get<std::string>();
    if (child.contains("same_as")) {
      modules.at(name)->register_module(key, modules.at(child.at("same_as").get<std::string>()));
    } else {
      add_repeated_modules(child, join(name, key), modules);
    }
  }
}

void tie_parameters(const std::vector<std::string>& names, const Modules& modules) {
  at::Tensor shared;
  for (const std::string& name : names) {
    const std::size_t dot = name.rfind('.');
    DataModule& module = *modules.at(dot == std::string::npos ? "" : name.substr(0, dot));
    const std::string key = dot == std::string::npos ? name : name.substr(dot + 1);
    if (shared.defined()) {
      module.replace_parameter(key, shared);
    } else {
      shared = module.named_parameters(/*recurse=*/false)[key];
    }
  }
}

// --- Options and results -------------------------------------------------------------------------

Placement placement_of(const std::string& key) {
  const bool is_index = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
  return is_index ? Placement(std::stoi(key)) : Placement(key);
}

MaxMemory limits_of(const json& document) {
  MaxMemory limits;
  for (const auto& [key, size] : document.items()) {
    limits.emplace(placement_of(key), size.is_string() ? MemorySize(size.get<std::string>())
                                                       : MemorySize(size.get<int64_t>()));
  }
  return limits;
}

DeviceMapOptions options_of(const json& document) {
  DeviceMapOptions options{.max_memory = limits_of(document.value("max_memory", json::object())),
                           .clean_result = document.value("clean_result", true),
                           .offload_buffers = document.value("offload_buffers", false),
                           .fallback_allocation = document.value("fallback_allocation", false)};
  const json no_split = document.value("no_split", json());
  if (!no_split.is_null()) options.no_split_module_classes = no_split;
  const json dtype = document.value("dtype", json());
  if (!dtype.is_null()) options.dtype = type_from(dtype.get<std::string>());
  const json special = document.value("special_dtypes", json::object());
  for (const auto& [name, type] : special.items()) {
    options.special_dtypes.emplace(name, type_from(type.get<std::string>()));
  }
  return options;
}

DeviceMap map_of(const ordered_json& document) {
  DeviceMap map;
  for (const auto& [name, place] : document.items()) {
    map.set(name,
            place.is_number() ? Placement(place.get<int>()) : Placement(place.get<std::string>()));
  }
  return map;
}

json placement_to(const Placement& place) {
  if (const auto index = place.gpu()) return *index;
  return place.text();
}

json map_to(const DeviceMap& map) {
  json result = json::object();
  for (const auto& [name, place] : map) result[name] = placement_to(place);
  return result;
}

json limits_to(const MaxMemory& limits) {
  json result = json::object();
  for (const auto& [place, limit] : limits) result[place.text()] = limit.bytes();
  return result;
}

json results_for(const ordered_json& ordered) {
  const GatheredLog unused;  // this machine lacks most GPUs of the documents
  const json document = ordered;
  const DeviceMapOptions options = options_of(document);
  const accelerant::ModuleSizeOptions sizing{.dtype = options.dtype,
                                             .special_dtypes = options.special_dtypes};
  Modules modules;
  const auto model =
      module_of(ordered.at("modules"), "", document.value("types", json::object()), modules);
  add_repeated_modules(ordered.at("modules"), "", modules);
  for (const auto& names : document.value("tied", std::vector<std::vector<std::string>>())) {
    tie_parameters(names, modules);
  }

  json result = json::object();
  const auto add = [&](const char* key, auto&& compute) {
    const json value = result_or_error([&]() -> json { return {{"value", compute()}}; });
    result[key] = value.contains("error") ? value : value.at("value");
  };
  add("device_map", [&] {
    const GatheredLog log;
    const json map = map_to(accelerant::infer_auto_device_map(*model, options));
    result["messages"] = log.messages();
    return map;
  });
  add("sizes", [&] { return json(accelerant::compute_module_sizes(*model, sizing)); });
  add("buffer_bytes",
      [&] { return json(accelerant::compute_module_total_buffer_size(*model, sizing)); });
  add("largest", [&] {
    const auto layers =
        accelerant::get_max_layer_size(*model, options.no_split_module_classes, sizing);
    return json{{"bytes", layers.bytes}, {"names", layers.names}};
  });
  add("tied", [&] { return json(accelerant::find_tied_parameters(*model)); });
  for (const bool low_zero : {false, true}) {
    add(low_zero ? "balanced_low_0" : "balanced", [&] {
      return limits_to(accelerant::get_balanced_memory(
          *model, {.max_memory = options.max_memory,
                   .no_split_module_classes = options.no_split_module_classes,
                   .dtype = options.dtype,
                   .special_dtypes = options.special_dtypes,
                   .low_zero = low_zero}));
    });
  }
  if (ordered.contains("clean")) {
    add("cleaned",
        [&] { return map_to(accelerant::clean_device_map(map_of(ordered.at("clean")))); });
  }
  if (ordered.contains("check")) {
    add("check", [&] {
      const GatheredLog log;
      accelerant::check_device_map(*model, map_of(ordered.at("check")));
      return json(log.messages());
    });
  }
  return result;
}

}  // namespace

json replay_device_map(const ordered_json& document) {
  return result_or_error([&] { return results_for(document); });
}

}  // namespace replay
