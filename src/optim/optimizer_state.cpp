#include "accelerant/optim/optimizer_state.h"

#include <nlohmann/json.hpp>

#include <torch/optim/optimizer.h>

#include "accelerant/core/error.h"
#include "optim/saved_optimizer.h"
#include "optim/state_watch.h"

namespace accelerant::optim {
namespace {

using detail::Field;
using nlohmann::json;

bool is_tensor(const Field& field) { return field.as<at::Tensor>() != nullptr; }

// The values of a parameter's state; adds its tensors to `tensors`.
json save_entry(const std::vector<Field>& fields, const std::string& parameter,
                StateDict& tensors) {
  json values = json::object();
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.insert(name, tensor);
  };
  for (const Field& field : fields) {
    if (is_tensor(field)) {
      add(tensor_name(field, parameter), *field.as<at::Tensor>());
      continue;
    }
    values[field.name] = value_of(field);
    const auto add_all = [&](const auto& list) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        add(element_name(field, i, parameter), list[i]);
      }
    };
    if (const auto* list = field.as<detail::TensorList>()) add_all(*list);
    if (const auto* list = field.as<detail::ScratchList>(); list && *list) add_all(**list);
  }
  return values;
}

}  // namespace

ParameterNames::ParameterNames(const StateDict& parameters) { add(parameters); }

void ParameterNames::add(const StateDict& parameters, const std::string& prefix) {
  for (const auto& item : parameters) add(prefix + item.key(), item.value());
}

void ParameterNames::add(const std::string& name, const at::Tensor& parameter) {
  const auto [known, is_new] = parameters_.try_emplace(name, parameter);
  if (!is_new && !known->second.is_same(parameter)) {
    throw Error(ErrorDetails{.problem = c10::str("Two parameters have the name '", name, "'"),
                             .hint = "give the parameters of each model a distinct prefix"});
  }
  names_.try_emplace(parameter.unsafeGetTensorImpl(), name);
}

const std::string* ParameterNames::find(const at::Tensor& parameter) const {
  const auto known = names_.find(parameter.unsafeGetTensorImpl());
  return known == names_.end() ? nullptr : &known->second;
}

NamedState optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  const auto& kind = detail::require_kind(optimizer);
  detail::announce_reading(optimizer);
  const auto names_by_group = detail::names_in_groups(optimizer, names);
  NamedState saved;
  json groups = json::array();
  json entries = json::object();
  auto& param_groups = optimizer.param_groups();
  for (std::size_t g = 0; g < param_groups.size(); ++g) {
    json group = {{"params", names_by_group[g]}};
    for (const Field& field : kind.fields(param_groups[g].options())) {
      group[field.name] = value_of(field);
    }
    groups.push_back(std::move(group));
    const auto& parameters = param_groups[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = names_by_group[g][i];
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr) continue;
      if (entries.contains(name)) continue;  // a tensor that the optimizer holds twice
      const auto fields = kind.fields(*found->second);
      if (fields.empty()) {
        throw Error(ErrorDetails{
            .problem = c10::str("The state of the parameter '", name, "' has an unknown type"),
            .expected = c10::str("a state of ", kind.name())});
      }
      entries[name] = save_entry(fields, name, saved.tensors);
    }
  }
  saved.values = json{
      {"kind", kind.name()}, {"param_groups", std::move(groups)}, {"state", std::move(entries)}};
  return saved;
}

}  // namespace accelerant::optim
