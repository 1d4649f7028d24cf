#include "optim/python_optimizer_state.h"

#include <ATen/ops/full.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/texts.h"
#include "optim/saved_optimizer.h"

namespace accelerant::optim {
namespace {

using detail::Field;
using detail::ScratchList;
using detail::TensorList;
using nlohmann::json;

bool is_list(const Field& field) {
  return field.as<TensorList>() != nullptr || field.as<ScratchList>() != nullptr;
}

// The options that Python has and libtorch lacks, with Python's defaults.
json python_defaults(const std::string& kind) {
  if (kind == "LBFGS") return json::object();
  json options = {{"maximize", false}, {"foreach", nullptr}, {"differentiable", false}};
  if (kind != "RMSprop") options["fused"] = nullptr;
  if (kind == "Adam" || kind == "AdamW" || kind == "RMSprop") options["capturable"] = false;
  if (kind == "Adam" || kind == "AdamW") options["decoupled_weight_decay"] = kind == "AdamW";
  return options;
}

// --- To Python -----------------------------------------------------------------------------------

class ToPython {
 public:
  explicit ToPython(const NamedState& state)
      : state_(state),
        saved_(detail::saved_optimizer(state)),
        scratch_(saved_.kind->make_state()),
        fields_(saved_.kind->fields(*scratch_)) {}

  NamedState convert() {
    python_.values = json{{"state", json::object()}, {"param_groups", json::array()}};
    for (const json& group : *saved_.groups) convert_group(group);
    faults_.check("The saved state cannot be converted to Python's form",
                  "load it in the form in which it was saved");
    return std::move(python_);
  }

 private:
  void convert_group(const json& group) {
    json converted = python_defaults(saved_.kind->name());
    for (const auto& item : group.items()) converted[item.key()] = item.value();
    converted["params"] = json::array();
    for (const json& name : group["params"]) {
      const auto [index, is_new] = indices_.try_emplace(name.get<std::string>(), next_);
      ++next_;  // as in Python, even for one that occurred before
      converted["params"].push_back(index->second);
      if (is_new && saved_.state->contains(index->first)) {
        convert_entry(index->first, index->second);
      }
    }
    python_.values["param_groups"].push_back(std::move(converted));
  }

  void convert_entry(const std::string& name, int64_t index) {
    const json& saved = (*saved_.state)[name];
    json& entry = python_.values["state"][std::to_string(index)] = json::object();
    for (const Field& field : fields_) {
      const std::string path = c10::str("state.", index, ".", field.name);
      const json value = saved.value(field.name, json());
      if (field.as<at::Tensor>() != nullptr) {
        add_tensor(path, tensor_name(field, name));
      } else if (is_list(field)) {
        if (!value.is_null()) entry[field.name] = convert_list(field, path, value, name);
      } else if (const auto expected = set_value(field, value)) {
        faults_.add("'", field.name, "' of '", name, "' is ", value.dump(), ", not ", *expected);
      } else if (field.name == std::string("step")) {
        python_.tensors.insert(path, at::full({}, value.get<double>(), at::kFloat));
      } else if (const auto* number = field.as<double>()) {
        entry[field.name] = *number;
      } else {
        entry[field.name] = value;
      }
    }
  }

  json convert_list(const Field& field, const std::string& path, const json& length,
                    const std::string& name) {
    if (!length.is_number_integer() || length < 0) {
      faults_.add("'", field.name, "' of '", name, "' is ", length.dump(), ", not a length");
      return nullptr;
    }
    json places = json::array();
    for (std::size_t i = 0; i < length.get<std::size_t>(); ++i) {
      places.push_back(nullptr);
      add_tensor(c10::str(path, ".", i), element_name(field, i, name));
    }
    return places;
  }

  void add_tensor(const std::string& path, const std::string& name) {
    const at::Tensor* const tensor = state_.tensors.find(name);
    if (tensor != nullptr) python_.tensors.insert(path, *tensor);
  }

  const NamedState& state_;
  const detail::SavedOptimizer saved_;
  const std::unique_ptr<torch::optim::OptimizerParamState> scratch_;  // to check values
  const std::vector<Field> fields_;
  std::map<std::string, int64_t> indices_;  // by parameter
  int64_t next_ = 0;
  NamedState python_;
  detail::Faults faults_;
};

// --- From Python ---------------------------------------------------------------------------------

class FromPython {
 public:
  FromPython(const NamedState& python, torch::optim::Optimizer& optimizer,
             const ParameterNames& names)
      : python_(python),
        optimizer_(optimizer),
        kind_(detail::require_kind(optimizer)),
        names_(detail::names_in_groups(optimizer, names)),
        defaults_(python_defaults(kind_.name())) {}

  NamedState convert() {
    result_.values =
        json{{"kind", kind_.name()}, {"param_groups", json::array()}, {"state", json::object()}};
    if (check_form()) {
      for (std::size_t g = 0; g < names_.size(); ++g) convert_group(g);
      for (const auto& item : python_.values["state"].items()) convert_entry(item.key());
      for (const auto& item : python_.tensors) convert_lone_tensor(item.key());
    }
    faults_.check(
        c10::str("The saved state cannot be converted to that of a torch::optim::", kind_.name()),
        "create the optimizer with the same parameters and groups as the saved one");
    return std::move(result_);
  }

 private:
  bool check_form() {
    const json& values = *python_.values;
    if (!values.is_object() || !values.contains("state") || !values["state"].is_object() ||
        !values.contains("param_groups") || !values["param_groups"].is_array()) {
      faults_.add("it has no dict 'state' and list 'param_groups'");
      return false;
    }
    const json& groups = values["param_groups"];
    if (groups.size() != names_.size()) {
      faults_.add("it has ", counted(groups.size(), "param group"), ", but the optimizer has ",
                  names_.size());
      return false;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const json params = groups[g].is_object() ? groups[g].value("params", json()) : json();
      const auto is_number = [](const json& id) { return id.is_number_integer(); };
      if (!params.is_array() || !std::ranges::all_of(params, is_number)) {
        faults_.add("group ", g, " has no list of integers 'params'");
      } else if (params.size() != names_[g].size()) {
        faults_.add("group ", g, " has ", counted(params.size(), "parameter"),
                    ", but the optimizer's group has ", names_[g].size());
      }
    }
    return faults_.empty();
  }

  void convert_group(std::size_t g) {
    const json& group = python_.values["param_groups"][g];
    const auto names = names_for(group, g);
    for (std::size_t i = 0; i < names.size(); ++i) {
      names_by_id_.emplace(group["params"][i].dump(), names[i]);
    }
    json converted = {{"params", names}};
    const std::string owner = c10::str("group ", g);
    for (const Field& field : kind_.fields(optimizer_.param_groups()[g].options())) {
      const std::string path = c10::str("param_groups.", g, ".", field.name);
      const json value = value_at(field, path, group.value(field.name, json()));
      if (value.is_null() && !group.contains(field.name)) {
        faults_.add(owner, " has no '", field.name, "'");
      }
      converted[field.name] = value;
    }
    if (group.value("maximize", json(false)) != json(false)) {
      faults_.add(owner, " has maximize=", group["maximize"].dump(),
                  ", which libtorch does not support: negate the loss instead");
    }
    const json decoupled = group.value("decoupled_weight_decay", json());
    if (defaults_.contains("decoupled_weight_decay") && decoupled.is_boolean() &&
        decoupled != defaults_["decoupled_weight_decay"]) {
      faults_.add(owner, " has decoupled_weight_decay=", decoupled.dump(), ": load it into an ",
                  decoupled.get<bool>() ? "AdamW" : "Adam");
    }
    result_.values["param_groups"].push_back(std::move(converted));
  }

  // In the order of the group's params.
  std::vector<std::string> names_for(const json& group, std::size_t g) const {
    const json given = group.value("param_names", json());
    const auto is_text = [](const json& name) { return name.is_string(); };
    if (!given.is_array() || !std::ranges::all_of(given, is_text)) return names_[g];
    const auto names = given.get<std::vector<std::string>>();
    return std::ranges::is_permutation(names, names_[g]) ? names : names_[g];
  }

  // A plain value that Python may store as a zero-dimensional tensor: a step count, a learning
  // rate.
  json value_at(const Field& field, const std::string& path, json value) {
    if (const at::Tensor* const tensor = take(path)) {
      if (tensor->numel() != 1) {
        faults_.add("'", path, "' has ", tensor->numel(), " elements, not one");
        return nullptr;
      }
      value = tensor->item().toDouble();
    }
    // A count may be a floating-point number without a fraction.
    if (field.as<int64_t>() != nullptr && value.is_number_float()) {
      const double number = value.get<double>();
      constexpr double kMost =
          9007199254740992.0;  // 2^53: doubles represent all integers up to here
      if (number == std::floor(number) && std::abs(number) <= kMost) {
        value = static_cast<int64_t>(number);
      }
    }
    return value;
  }

  void convert_entry(const std::string& key) {
    const auto named = names_by_id_.find(key);
    if (named == names_by_id_.end()) {
      faults_.add("it has a state for the parameter ", key, ", which is in no group");
      return;
    }
    const std::string& name = named->second;
    const json& entry = python_.values["state"][key];
    if (!entry.is_object()) {
      faults_.add("the state of the parameter ", key, " is not a dict");
      return;
    }
    const auto prototype = kind_.make_state();
    json converted = json::object();
    std::set<std::string> known;
    bool lacks_all_tensors = true;
    for (const Field& field : kind_.fields(*prototype)) {
      known.insert(field.name);
      const std::string path = c10::str("state.", key, ".", field.name);
      const json value = entry.value(field.name, json());
      if (field.as<at::Tensor>() != nullptr) {
        if (convert_tensor(field, path, value, name)) lacks_all_tensors = false;
      } else if (is_list(field)) {
        converted[field.name] = convert_list(field, path, value, name);
      } else {
        const json number = value_at(field, path, value);
        converted[field.name] = number.is_null() ? value_of(field) : number;
      }
    }
    for (const auto& item : entry.items()) {
      if (!known.contains(item.key())) {
        faults_.add("the state of the parameter ", key, " has a field '", item.key(),
                    "', which libtorch's optimizer lacks");
      }
    }
    // Python's SGD may hold an entry without a buffer; libtorch's has no entry then.
    if (converted.empty() && lacks_all_tensors) return;
    result_.values["state"][name] = std::move(converted);
  }

  bool convert_tensor(const Field& field, const std::string& path, const json& value,
                      const std::string& name) {
    if (const at::Tensor* const tensor = take(path)) {
      result_.tensors.insert(tensor_name(field, name), *tensor);
      return true;
    }
    if (value.is_null()) return false;
    const auto number = detail::number_in(value);
    if (!number || field.shape != detail::FieldShape::scalar) {
      faults_.add("'", path, "' is ", value.dump(), ", not a tensor");
      return false;
    }
    // H_diag of LBFGS starts as the number 1.
    const auto type = optimizer_.param_groups()[0].params()[0].scalar_type();
    result_.tensors.insert(tensor_name(field, name), at::full({}, *number, type));
    return true;
  }

  json convert_list(const Field& field, const std::string& path, const json& places,
                    const std::string& name) {
    const bool is_scratch = field.as<ScratchList>() != nullptr;
    if (places.is_null()) return is_scratch ? json(nullptr) : json(0);
    if (!places.is_array()) {
      faults_.add("'", path, "' is ", places.dump(), ", not a list");
      return nullptr;
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (const at::Tensor* const tensor = take(c10::str(path, ".", i))) {
        result_.tensors.insert(element_name(field, i, name), *tensor);
      }
    }
    return places.size();
  }

  // Tensors that no entry has requested belong to an unknown field or a missing entry.
  void convert_lone_tensor(const std::string& path) {
    if (!taken_.contains(path) && path.starts_with("state.")) {
      faults_.add("the tensor '", path, "' does not belong to any field of libtorch's optimizer");
    }
  }

  const at::Tensor* take(const std::string& path) {
    const at::Tensor* const tensor = python_.tensors.find(path);
    if (tensor == nullptr || !tensor->defined()) return nullptr;
    taken_.insert(path);
    return tensor;
  }

  const NamedState& python_;
  torch::optim::Optimizer& optimizer_;
  const detail::OptimizerKind& kind_;
  const detail::GroupNames names_;
  const json defaults_;
  std::map<std::string, std::string> names_by_id_;  // ids as strings, as in the keys
  std::set<std::string> taken_;                     // paths of tensors
  NamedState result_;
  detail::Faults faults_;
};

}  // namespace

NamedState to_python_state(const NamedState& state) { return ToPython(state).convert(); }

NamedState from_python_state(const NamedState& python, torch::optim::Optimizer& optimizer,
                             const ParameterNames& names) {
  return FromPython(python, optimizer, names).convert();
}

}  // namespace accelerant::optim
