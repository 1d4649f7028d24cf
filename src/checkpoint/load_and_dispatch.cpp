#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerant/checkpoint/models.h"
#include "accelerant/core/error.h"
#include "checkpoint/model_loading.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_copy.h"
#include "core/texts.h"
#include "paging/offload/dispatch.h"
#include "paging/offload/files.h"
#include "paging/offload/homes.h"
#include "store/model_files.h"
#include "tensor/module_state.h"
#include "tensor/storage_move.h"

namespace accelerant {
namespace {

using checkpoint::Place;
using checkpoint::TensorsByName;
using paging::NamedParameter;

const c10::Device kMeta(c10::DeviceType::Meta);

DeviceMap map_for(const torch::nn::Module& module, const LoadAndDispatchOptions& options) {
  DeviceMap map = options.device_map.resolve(
      module, {.max_memory = options.max_memory,
               .no_split_module_classes = options.no_split_module_classes,
               .dtype = options.dtype,
               .offload_buffers = options.offload_buffers});
  check_device_map(module, map);
  return map;
}

// A tensor without values in the files must have some already.
void require_values_of(const std::vector<std::string>& missing, const StateDict& state,
                       const std::string& path) {
  std::vector<std::string> without;
  for (const std::string& name : missing) {
    if (state[name].is_meta()) without.push_back(name);
  }
  if (without.empty()) return;
  throw Error(ErrorDetails{.problem = path + " does not hold the whole model, which is unchanged",
                           .expected = "values for all tensors on the meta device",
                           .got = "none for " + list_text(without, 20),
                           .hint = "check that this is the checkpoint of this model"});
}

// In place, and without memory where the tensor has none.
void convert_all(const StateDict& state, c10::ScalarType dtype) {
  for (const auto& names : checkpoint::names_of_each(state)) {
    const at::Tensor& tensor = state[names.front()];
    if (!tensor.is_floating_point() || tensor.scalar_type() == dtype) continue;
    const at::Tensor converted = tensor.detach().to(dtype);
    for (const std::string& name : names) at::Tensor(state[name]).set_data(converted);
  }
}

// The tensors of a checkpoint that are loaded, and where to. All that is known or used of the
// checkpoint is in the files that are opened here: another process may save it again meanwhile.
class Loading {
 public:
  Loading(const std::string& path, bool checksums)
      : files_(checkpoint::open_to_load(path, checksums)), by_name_(files_) {}

  LoadedModel require_match(const StateDict& state, const std::string& path, bool strict) const {
    return checkpoint::require_match(state, by_name_, path, strict, checkpoint::kIgnoreOtherNames);
  }

  // Its tensors for weights that stay in the files.
  paging::FileTensors mapped() const { return paging::tensors_of_model(files_); }

  bool has(const std::string& name) const { return by_name_.find(name).has_value(); }

  // The values stay in the checkpoint's file, unless value_of() is asked for them.
  void leave(const NamedParameter& named) { left_.insert(named.name); }

  // The tensor must have memory.
  void add(const NamedParameter& named) {
    const auto place = by_name_.find(named.name);
    if (!place || !known_.insert(named.parameter.unsafeGetTensorImpl()).second) return;
    copies_.push_back({place->file, place->tensor, named.parameter.detach()});
  }

  void load() {
    const at::NoGradGuard no_grad;
    checkpoint::read_tensors(copies_);
    copies_.clear();
  }

  // One tensor, on the CPU.
  at::Tensor value_of(const NamedParameter& named) {
    left_.erase(named.name);
    const auto place = by_name_.find(named.name);
    if (!place) return {};
    at::Tensor value = checkpoint::new_tensor(named.parameter.sizes(),
                                              named.parameter.scalar_type(), place->file->path());
    checkpoint::read_tensors({{place->file, place->tensor, value}});
    return value;
  }

  // Compares what the model does not use, too, as load_checkpoint_in_model() does, but not in files
  // in which values stay: they may be larger than memory and are read when they are needed.
  void check_rest() const {
    std::unordered_set<const checkpoint::WeightFile*> in_use;
    for (const std::string& name : left_) in_use.insert(by_name_.find(name)->file);
    for (const auto& file : files_) {
      if (!in_use.contains(file.get())) file->check_rest(checkpoint::reading_threads());
    }
  }

 private:
  checkpoint::WeightFiles files_;
  TensorsByName by_name_;
  std::vector<checkpoint::TensorCopy> copies_;
  std::unordered_set<const c10::TensorImpl*> known_;
  std::unordered_set<std::string> left_;
};

// Tensors that share memory share it afterwards.
void give_memory_to(const std::vector<NamedParameter>& tensors, c10::Device device) {
  StorageMove move(device);
  for (const NamedParameter& named : tensors) {
    if (StorageMove::can_move(named.parameter) && !is_on(named.parameter, device)) {
      move.move(named.parameter);
    }
  }
}

c10::Device loads_to(const paging::Home& home, c10::Device main_device) {
  switch (home.kind) {
    case paging::Home::Kind::host:
      return c10::Device(c10::kCPU);
    case paging::Home::Kind::device:
      return home.device;
    default:
      return main_device;
  }
}

void load_parts(paging::Division& division, c10::Device main_device, Loading& loading) {
  give_memory_to(division.others, main_device);
  for (const NamedParameter& named : division.others) loading.add(named);
  std::vector<NamedParameter> in_files;
  for (const paging::HomedUnit& unit : division.units) {
    if (unit.home.kind == paging::Home::Kind::file) {
      // What the checkpoint has is used there; what it lacks is written to another file.
      for (const NamedParameter& named : unit.plan.parameters) {
        if (!loading.has(named.name)) continue;
        in_files.push_back(named);
        loading.leave(named);
      }
    } else {
      give_memory_to(unit.plan.parameters, loads_to(unit.home, main_device));
      for (const NamedParameter& named : unit.plan.parameters) loading.add(named);
    }
  }
  give_memory_to(in_files, kMeta);
  loading.load();
}

// The parameters as they will be, without memory.
std::vector<NamedParameter> converted(const std::vector<NamedParameter>& parameters,
                                      std::optional<c10::ScalarType> dtype) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known;  // tied ones stay tied
  std::vector<NamedParameter> result;
  for (const auto& [name, parameter] : parameters) {
    at::Tensor& empty = known[parameter.unsafeGetTensorImpl()];
    if (!empty.defined()) {
      const bool is_converted = dtype && parameter.is_floating_point();
      empty = at::empty(parameter.sizes(), at::TensorOptions(kMeta).dtype(
                                               is_converted ? *dtype : parameter.scalar_type()));
    }
    result.push_back({name, empty});
  }
  return result;
}

void require_folder(const paging::Division& division, const paging::FileTensors& known,
                    const std::string& checkpoint, std::optional<c10::ScalarType> dtype) {
  std::vector<NamedParameter> in_files;
  for (const paging::HomedUnit& unit : division.units) {
    if (unit.home.kind != paging::Home::Kind::file) continue;
    const auto parameters = converted(unit.plan.parameters, dtype);
    in_files.insert(in_files.end(), parameters.begin(), parameters.end());
  }
  const std::vector<std::string> missing = paging::missing_from(known, in_files);
  if (missing.empty()) return;
  throw Error(ErrorDetails{
      .problem = "At least one of the model submodule will be offloaded to disk, please pass along "
                 "an `offload_folder`",
      .expected = "one for weights that cannot be used from " + checkpoint +
                  " as they are, because it is no safetensors model or their type is another",
      .got = "none for " + list_text(missing, 5),
      .hint = "set offload_folder"});
}

void load_divided(torch::nn::Module& module, const DeviceMap& map, Loading& loading,
                  const std::string& checkpoint, const LoadAndDispatchOptions& options) {
  paging::PlacementRequest request = paging::request_of(options);
  request.execution_device = paging::main_device_of(map, options.main_device);
  request.home_of = paging::homes_in(map, request.execution_device);
  const paging::FileTensors known = loading.mapped();
  request.files_of = [&](const std::vector<NamedParameter>& parameters) {
    return paging::put_on_disk(
        parameters, known, options.offload_folder,
        [&](const NamedParameter& named) { return loading.value_of(named); });
  };
  paging::Division division = paging::divide(module, request);
  if (options.offload_folder.empty()) {
    require_folder(division, known, checkpoint, options.dtype);
  }
  if (options.dtype) convert_all(state_of(module), *options.dtype);
  checkpoint::fill_model([&] {
    load_parts(division, request.execution_device, loading);
    // Reads what is written to files in a form of their own.
    auto offload = paging::plan_offload(std::move(division), request);
    loading.check_rest();
    paging::OffloadedModel::attach(std::move(offload));
  });
}

}  // namespace

LoadedModel load_checkpoint_and_dispatch(torch::nn::Module& module, const std::string& checkpoint,
                                         const LoadAndDispatchOptions& options) {
  paging::require_not_offloaded(module);
  if (options.device_map.empty()) {
    return load_checkpoint_in_model(
        module, checkpoint,
        {.strict = options.strict, .dtype = options.dtype, .checksums = options.checksums});
  }
  const StateDict state = state_of(module);
  const DeviceMap map = map_for(module, options);
  Loading loading(checkpoint, options.checksums);
  const LoadedModel names = loading.require_match(state, checkpoint, options.strict);
  require_values_of(names.missing, state, checkpoint);
  load_divided(module, map, loading, checkpoint, options);
  return names;
}

}  // namespace accelerant
