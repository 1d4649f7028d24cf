// Loading takes two passes. The first checks everything and prepares new options and states; the
// second, which starts only if there are no faults, copies tensors and sets values.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/texts.h"
#include "optim/optimizer_loading.h"
#include "optim/saved_optimizer.h"
#include "optim/state_watch.h"

namespace accelerant::optim {
namespace {

using detail::Field;
using detail::FieldShape;
using detail::ScratchList;
using detail::TensorList;
using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// Assigns the fields of one object to those of another of the same class.
void assign(const std::vector<Field>& targets, const std::vector<Field>& sources) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    std::visit([&]<class T>(T* target) { *target = std::move(*std::get<T*>(sources[i].value)); },
               targets[i].value);
  }
}

class Loading {
 public:
  Loading(Optimizer& optimizer, const ParameterNames& names, const NamedState& state)
      : optimizer_(optimizer),
        kind_(detail::require_kind(optimizer)),
        names_(detail::names_in_groups(optimizer, names)),
        state_(state),
        saved_(detail::saved_optimizer(state_)),
        home_(detail::home_of_state(optimizer)) {}

  void prepare() {
    if (check_groups()) {
      for (std::size_t g = 0; g < names_.size(); ++g) prepare_group(g);
      check_leftovers();
    }
    faults_.check(
        c10::str("The saved state does not match this ", kind_.name(), "; nothing was loaded"),
        "create the optimizer with the same parameters and groups as the saved one");
  }

  void commit() {
    const at::NoGradGuard no_grad;
    for (const auto& [target, source] : copies_) target.copy_(source);
    auto& groups = optimizer_.param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      assign(kind_.fields(groups[g].options()), kind_.fields(*options_[g]));
      for (const at::Tensor& parameter : groups[g].params()) set_state(parameter);
    }
    detail::announce_written(optimizer_);
  }

 private:
  // Where a parameter is in the optimizer.
  struct Place {
    at::Tensor parameter;
    const json* options;  // of its group, as saved
  };

  // Whether the groups match, so that it makes sense to compare their content.
  bool check_groups() {
    if (saved_.kind != &kind_) {
      faults_.add("it is the state of an optimizer of type ", saved_.kind->name());
      return false;
    }
    if (saved_.groups->size() != names_.size()) {
      faults_.add("it has ", counted(saved_.groups->size(), "param group"),
                  ", but the optimizer has ", names_.size());
      return false;
    }
    for (std::size_t g = 0; g < names_.size(); ++g) check_names(g);
    return true;
  }

  void check_names(std::size_t g) {
    const auto saved = (*saved_.groups)[g]["params"].get<std::vector<std::string>>();
    const std::multiset<std::string> theirs(saved.begin(), saved.end());
    const std::multiset<std::string> ours(names_[g].begin(), names_[g].end());
    std::vector<std::string> missing;
    std::vector<std::string> surplus;
    std::ranges::set_difference(ours, theirs, std::back_inserter(missing));
    std::ranges::set_difference(theirs, ours, std::back_inserter(surplus));
    for (const auto& name : missing) faults_.add("its group ", g, " lacks '", name, "'");
    for (const auto& name : surplus) {
      faults_.add("its group ", g, " has '", name, "', which the optimizer's group lacks");
    }
    // LBFGS builds its vectors from all parameters one after another.
    if (kind_.name() == std::string("LBFGS") && theirs == ours && saved != names_[g]) {
      faults_.add("its parameters are in a different order, which matters for LBFGS");
    }
  }

  void prepare_group(std::size_t g) {
    auto& group = optimizer_.param_groups()[g];
    const json& saved = (*saved_.groups)[g];
    auto& options = options_.emplace_back(group.options().clone());
    const auto fields = kind_.fields(*options);
    for (const Field& field : fields) set(field, saved, c10::str("group ", g));
    std::set<std::string> known = {"params"};
    for (const Field& field : fields) known.insert(field.name);
    for (const auto& item : saved.items()) {
      if (!known.contains(item.key())) {
        faults_.add("its group ", g, " has an option '", item.key(), "', which this ", kind_.name(),
                    " lacks");
      }
    }
    for (const at::Tensor& parameter : group.params()) elements_ += parameter.numel();
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      prepare_entry(names_[g][i], {group.params()[i], &saved});
    }
  }

  // Sets the value of a field from the object that contains it.
  void set(const Field& field, const json& object, const std::string& owner) {
    const auto value = object.find(field.name);
    if (value == object.end()) {
      faults_.add(owner, " lacks '", field.name, "'");
    } else if (const auto expected = set_value(field, *value)) {
      faults_.add("'", field.name, "' of ", owner, " is ", value->dump(), ", not ", *expected);
    }
  }

  void prepare_entry(const std::string& name, const Place& place) {
    const auto entry = saved_.state->find(name);
    if (entry == saved_.state->end() || !seen_.insert(name).second) return;
    auto& fresh = states_[place.parameter.unsafeGetTensorImpl()] = kind_.make_state();
    std::vector<Field> existing;
    if (auto* const state = existing_state(place.parameter)) existing = kind_.fields(*state);
    const auto fields = kind_.fields(*fresh);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const Field& field = fields[i];
      if (field.as<at::Tensor>() != nullptr) {
        auto* const old = i < existing.size() ? existing[i].as<at::Tensor>() : nullptr;
        prepare_tensor(field, old, name, *entry, place);
      } else if (field.as<TensorList>() != nullptr || field.as<ScratchList>() != nullptr) {
        prepare_list(field, name, *entry, place);
      } else {
        set(field, *entry, c10::str("the state of '", name, "'"));
      }
    }
  }

  void prepare_tensor(const Field& field, const at::Tensor* old, const std::string& name,
                      const json& entry, const Place& place) {
    const at::Tensor* const source = find_tensor(tensor_name(field, name));
    if (source == nullptr) {
      if (is_needed(field, entry, *place.options)) {
        faults_.add("the tensor '", tensor_name(field, name), "' is missing");
      }
      return;
    }
    if (!fits(field, *source, tensor_name(field, name), place.parameter)) return;
    const bool reuse = old != nullptr && old->defined() && old->sizes() == source->sizes() &&
                       old->dtype() == source->dtype() && old->device() == home_of(place.parameter);
    *field.as<at::Tensor>() = reuse ? *old : empty_for(field, *source, place.parameter);
    copies_.emplace_back(*field.as<at::Tensor>(), *source);
  }

  // Elements are always new tensors: in an optimizer that has continued, they have moved to other
  // positions of the list.
  void prepare_list(const Field& field, const std::string& name, const json& entry,
                    const Place& place) {
    const bool is_scratch = field.as<ScratchList>() != nullptr;
    const json length = entry.value(field.name, json());
    if (is_scratch && length.is_null()) return;
    const json history = place.options->value("history_size", json());
    // As in libtorch, whose next step would otherwise write past the end.
    const bool is_right = length.is_number_integer() && history.is_number_integer() &&
                          (is_scratch ? length == history
                                      : length >= 0 && length <= history &&
                                            length == entry.value("old_dirs", json()));
    if (!is_right) {
      faults_.add("the list '", field.name, "' of '", name, "' has the length ", length.dump(),
                  ", which does not match a history_size of ", history.dump());
      return;
    }
    std::vector<at::Tensor> elements(length.get<std::size_t>());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::string element = element_name(field, i, name);
      const at::Tensor* const source = find_tensor(element);
      if (source == nullptr && is_scratch) continue;
      if (source == nullptr) {
        faults_.add("the tensor '", element, "' is missing");
        return;
      }
      if (!fits(field, *source, element, place.parameter)) continue;
      elements[i] = empty_for(field, *source, place.parameter);
      copies_.emplace_back(elements[i], *source);
    }
    if (is_scratch) {
      *field.as<ScratchList>() = std::move(elements);
    } else {
      field.as<TensorList>()->assign(elements.begin(), elements.end());
    }
  }

  static bool is_needed(const Field& field, const json& entry, const json& options) {
    if (field.needed_if.empty()) return false;
    if (field.needed_if == detail::kAlways) return true;
    const auto is_set = [&](const json& object) {
      const json value = object.value(std::string(field.needed_if), json());
      return value.is_boolean() ? value.get<bool>() : value.is_number() && value != 0;
    };
    return is_set(entry) || is_set(options);
  }

  const at::Tensor* find_tensor(const std::string& name) {
    const at::Tensor* const tensor = state_.tensors.find(name);
    if (tensor == nullptr || !tensor->defined()) return nullptr;
    used_.insert(name);
    return tensor;
  }

  std::vector<int64_t> shape_of(const Field& field, const at::Tensor& parameter) const {
    if (field.shape == FieldShape::scalar) return {};
    if (field.shape == FieldShape::flat) return {elements_};
    return parameter.sizes().vec();
  }

  bool fits(const Field& field, const at::Tensor& source, const std::string& name,
            const at::Tensor& parameter) {
    const auto expected = shape_of(field, parameter);
    // libtorch's LBFGS starts with an integer without dimensions.
    const bool is_fraction =
        source.is_floating_point() || source.is_complex() || field.shape == FieldShape::scalar;
    if (source.layout() == at::kStrided && source.sizes() == expected && is_fraction) return true;
    faults_.add("'", name, "' is a tensor of ", source.dtype().name(), " ", source.sizes(),
                " instead of a floating-point tensor ", at::IntArrayRef(expected));
    return false;
  }

  c10::Device home_of(const at::Tensor& parameter) const {
    return home_.value_or(parameter.device());
  }

  at::Tensor empty_for(const Field& field, const at::Tensor& source,
                       const at::Tensor& parameter) const {
    const auto options = source.options().device(home_of(parameter)).requires_grad(false);
    // In the memory format of the parameter, as the optimizer would have created it.
    if (field.shape == FieldShape::parameter) {
      return at::empty_like(parameter, options, at::MemoryFormat::Preserve);
    }
    return at::empty(source.sizes(), options);
  }

  void check_leftovers() {
    for (const auto& item : saved_.state->items()) {
      if (!seen_.contains(item.key())) {
        faults_.add("it has a state for '", item.key(),
                    "', which is not a parameter of the optimizer");
      }
    }
    for (const auto& item : state_.tensors) {
      if (!used_.contains(item.key())) {
        faults_.add("the tensor '", item.key(), "' does not belong to any parameter");
      }
    }
  }

  OptimizerParamState* existing_state(const at::Tensor& parameter) {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr : found->second.get();
  }

  // Whether `state` has a field for everything in `fresh`: torch's own states have none for a
  // master copy.
  bool has_fields_for(OptimizerParamState& state, OptimizerParamState& fresh) const {
    const auto fields = kind_.fields(fresh);
    const std::size_t room = kind_.fields(state).size();
    return std::ranges::all_of(fields | std::views::drop(room), [](const Field& field) {
      return field.as<at::Tensor>() != nullptr && !field.as<at::Tensor>()->defined();
    });
  }

  // Keep an existing state object, because others may refer to it.
  void set_state(const at::Tensor& parameter) {
    const auto fresh = states_.find(parameter.unsafeGetTensorImpl());
    if (fresh == states_.end()) {
      optimizer_.state().erase(parameter.unsafeGetTensorImpl());
    } else if (fresh->second == nullptr) {
      return;  // already done: the optimizer holds the parameter twice
    } else if (auto* const state = existing_state(parameter);
               state != nullptr && has_fields_for(*state, *fresh->second)) {
      assign(kind_.fields(*state), kind_.fields(*fresh->second));
      fresh->second.reset();
    } else {
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(fresh->second);
    }
  }

  Optimizer& optimizer_;
  const detail::OptimizerKind& kind_;
  const detail::GroupNames names_;
  NamedState state_;
  const detail::SavedOptimizer saved_;
  const std::optional<c10::Device> home_;  // of the states, if not beside the parameters
  detail::Faults faults_;

  int64_t elements_ =
      0;  // of all parameters of the groups so far; kinds with flat fields have one group
  std::unordered_set<std::string> seen_;  // parameters with a saved state
  std::unordered_set<std::string> used_;  // tensors
  std::vector<std::unique_ptr<OptimizerOptions>> options_;
  std::unordered_map<const void*, std::unique_ptr<OptimizerParamState>> states_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // target, source
};

}  // namespace

std::function<void()> prepare_loading(Optimizer& optimizer, const ParameterNames& names,
                                      const NamedState& state) {
  auto loading = std::make_shared<Loading>(optimizer, names, state);
  loading->prepare();
  return [loading] { loading->commit(); };
}

void load_optimizer_state_dict(Optimizer& optimizer, const ParameterNames& names,
                               const NamedState& state) {
  prepare_loading(optimizer, names, state)();
}

}  // namespace accelerant::optim
