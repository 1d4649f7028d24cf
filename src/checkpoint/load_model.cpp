#include "accelerant/checkpoint/models.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "checkpoint/model_loading.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/tensor_placement.h"
#include "paging/offload/files.h"
#include "store/model_files.h"
#include "tensor/module_state.h"
#include "tensor/tensor_dtype.h"

namespace accelerant {
namespace {

using checkpoint::Place;
using checkpoint::TensorsByName;

constexpr std::size_t kMostNames = 20;  // per kind in an Error

// What to do, and what does not match.
struct Plan {
  std::vector<checkpoint::TensorCopy> copies = {};
  LoadedModel names = {};
  std::vector<std::string> misfits = {};
};

bool can_become(c10::ScalarType stored, c10::ScalarType wanted) {
  return stored == wanted || (c10::isFloatingType(stored) && c10::isFloatingType(wanted));
}

std::string misfit_of(const at::Tensor& target, const checkpoint::WeightTensor& stored) {
  if (target.sizes() != c10::IntArrayRef(stored.shape)) {
    return c10::str("shape: expected ", target.sizes(), ", got ", c10::IntArrayRef(stored.shape));
  }
  const auto type = archive_type(stored.dtype);
  if (!type || !can_become(*type, target.scalar_type())) {
    return c10::str("type: expected ", c10::toString(target.scalar_type()), ", got ", stored.dtype);
  }
  return "";
}

void add_copy(Plan& plan, const std::string& name, const at::Tensor& target, const Place& from) {
  const std::string misfit = misfit_of(target, *from.tensor);
  if (!misfit.empty()) plan.misfits.push_back(name + ", " + misfit);
  plan.copies.push_back({from.file, from.tensor, target});
}

Plan make_plan(const StateDict& state, const TensorsByName& files) {
  Plan plan;
  std::unordered_set<std::string> used;           // names in the files
  std::unordered_map<std::string, Place> places;  // by the model's names
  for (const auto& item : state) {
    if (const auto place = files.find(item.key())) {
      places.emplace(item.key(), *place);
      used.insert(place->stored_name);
    }
  }
  for (const auto& names : checkpoint::names_of_each(state)) {
    // A missing name does not matter if another name of the same tensor is stored.
    const bool is_stored =
        std::ranges::any_of(names, [&](const std::string& name) { return places.contains(name); });
    for (const std::string& name : names) {
      const auto found = places.find(name);
      if (found != places.end()) {
        add_copy(plan, name, state[name], found->second);
      } else if (!is_stored) {
        plan.names.missing.push_back(name);
      }
    }
  }
  for (const std::string& name : files.names()) {
    if (!used.contains(name)) plan.names.unexpected.push_back(name);
  }
  return plan;
}

void add_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += c10::str("\n  ", title, " (", names.size(), "):");
  for (std::size_t i = 0; i < names.size() && i < kMostNames; ++i) text += "\n    " + names[i];
  if (names.size() > kMostNames) text += "\n    ...";
}

void require_fit(const Plan& plan, const std::string& path, bool strict, const std::string& hint) {
  std::string faults;
  add_list(faults, "wrong shape or type", plan.misfits);
  if (strict) {
    add_list(faults, "not in the files", plan.names.missing);
    add_list(faults, "not in the model", plan.names.unexpected);
  }
  if (faults.empty()) return;
  if (strict) faults += "\n  " + hint;
  throw Error(path + " does not match the model, which is unchanged:" + faults);
}

// The values of tensors that a map puts on "disk", on their way to a folder.
class DiskParts {
 public:
  // `opened` must outlive this object.
  DiskParts(const StateDict& state, const checkpoint::WeightFiles& opened,
            const TensorsByName& files, std::string checkpoint, const LoadModelOptions& options)
      : opened_(&opened), checkpoint_(std::move(checkpoint)), folder_(options.offload_folder) {
    for (const auto& names : checkpoint::names_of_each(state)) {
      if (checkpoint::is_on_disk(names, options.device_map)) add(names, state, files, options);
    }
  }

  bool contains(const at::Tensor& tensor) const {
    return parts_.contains(tensor.unsafeGetTensorImpl());
  }

  // Changes no tensor.
  void write() const {
    if (tensors_.empty()) return;
    paging::put_on_disk(
        tensors_, own_files(), folder_, [this](const paging::NamedParameter& named) {
          const Place& from = places_.at(named.name);
          at::Tensor value = checkpoint::new_tensor(
              named.parameter.sizes(), named.parameter.scalar_type(), from.file->path());
          checkpoint::read_tensors({{from.file, from.tensor, value}});
          return value;
        });
  }

 private:
  // A tensor without memory stands for one whose values the files have.
  void add(const std::vector<std::string>& names, const StateDict& state,
           const TensorsByName& files, const LoadModelOptions& options) {
    const at::Tensor& first = state[names.front()];
    const at::ScalarType type = checkpoint::loaded_type(names, first, options);
    const at::Tensor empty = at::empty(first.sizes(), at::TensorOptions(at::kMeta).dtype(type));
    const std::size_t before = tensors_.size();
    for (const std::string& name : names) {
      parts_.insert(state[name].unsafeGetTensorImpl());
      const auto place = files.find(name);
      if (!place) continue;
      places_.emplace(name, *place);
      tensors_.push_back({name, empty});
    }
    if (tensors_.size() == before && !first.is_meta()) {
      tensors_.push_back({names.front(), first.detach().to(type)});
    }
  }

  // Not what another checkpoint has left in the folder.
  paging::FileTensors own_files() const {
    std::error_code failure;
    const bool is_same = std::filesystem::equivalent(checkpoint_, folder_, failure);
    return is_same ? paging::tensors_of_model(*opened_) : paging::FileTensors();
  }

  const checkpoint::WeightFiles* opened_;
  std::string checkpoint_;
  std::string folder_;
  std::unordered_map<std::string, Place> places_;  // by the model's names
  std::vector<paging::NamedParameter> tensors_;
  std::unordered_set<const c10::TensorImpl*> parts_;
};

}  // namespace

checkpoint::WeightFiles checkpoint::open_to_load(const std::string& path, bool checksums) {
  WeightFiles files = checksums
                          ? open_checked_model(path, reading_threads(), Compare::while_reading)
                          : open_model(path);
  failpoint("model.opened");
  return files;
}

LoadedModel checkpoint::require_match(const StateDict& state, const TensorsByName& files,
                                      const std::string& path, bool strict,
                                      const std::string& hint) {
  Plan plan = make_plan(state, files);
  require_fit(plan, path, strict, hint);
  return std::move(plan.names);
}

checkpoint::PreparedModel checkpoint::prepare_loading(const StateDict& state,
                                                      const std::string& path,
                                                      const LoadModelOptions& options,
                                                      const std::string& hint) {
  const auto files = std::make_shared<const WeightFiles>(open_to_load(path, options.checksums));
  const TensorsByName by_name(*files);
  Plan plan = make_plan(state, by_name);
  require_fit(plan, path, options.strict, hint);
  require_placements(state, by_name, options);
  const DiskParts on_disk(state, *files, by_name, path, options);
  std::erase_if(plan.copies, [&](const TensorCopy& copy) { return on_disk.contains(copy.target); });
  return {.names = plan.names,
          .load = [files, state, options, on_disk, copies = std::move(plan.copies)] {
            const at::NoGradGuard no_grad;
            require_memory(copies, options.device_map);
            on_disk.write();
            place_tensors(state, options);
            fill_model([&] {
              read_tensors(copies);
              for (const auto& file : *files) file->check_rest(reading_threads());
            });
          }};
}

void checkpoint::fill_model(const std::function<void()>& fill) {
  try {
    fill();
  } catch (const Error& error) {
    throw Error(std::string(error.what()) +
                "\n  This was found while the model was filled: some of its tensors have their new "
                "values, others still the old ones or none. Load a model that is not damaged "
                "before you use it.");
  }
}

LoadedModel load_checkpoint_in_model(const StateDict& state, const std::string& path,
                                     const LoadModelOptions& options) {
  const checkpoint::PreparedModel prepared =
      checkpoint::prepare_loading(state, path, options, checkpoint::kIgnoreOtherNames);
  prepared.load();
  return prepared.names;
}

LoadedModel load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                     const LoadModelOptions& options) {
  return load_checkpoint_in_model(state_of(module), path, options);
}

}  // namespace accelerant
