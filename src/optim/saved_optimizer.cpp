#include "optim/saved_optimizer.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "core/texts.h"

namespace accelerant::optim::detail {
namespace {

using nlohmann::json;

constexpr std::size_t kMostFaults = 20;

json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

bool is_count(const json& value) {
  return value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int64_t>::max();
}

[[noreturn]] void refuse_form(const std::string& expected) {
  throw Error(ErrorDetails{.problem = "This is not the state of an optimizer",
                           .expected = expected,
                           .hint = "load a state from optimizer_state_dict()"});
}

bool is_group(const json& group) {
  if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) return false;
  return std::ranges::all_of(group["params"], [](const json& name) { return name.is_string(); });
}

}  // namespace

const OptimizerKind& require_kind(const torch::optim::Optimizer& optimizer) {
  if (const OptimizerKind* const kind = find_kind(optimizer)) return *kind;
  std::vector<std::string> known;
  for (const OptimizerKind* kind : optimizer_kinds()) known.push_back(kind->name());
  const std::string type = c10::demangle(typeid(optimizer).name());
  throw Error(ErrorDetails{
      .problem =
          c10::str("The state of an optimizer of class ", type, " cannot be saved or loaded"),
      .expected = "one of " + list_text(known),
      .got = type,
      .hint = "give the class its own state_dict and load_state_dict, and register the object for "
              "checkpointing itself"});
}

GroupNames names_in_groups(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  GroupNames result;
  ParameterNames seen;  // a tensor may occur twice, but a name must mean one tensor
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto& of_group = result.emplace_back();
    const auto& parameters = groups[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string* name = names.find(parameters[i]);
      if (name == nullptr) name = seen.find(parameters[i]);
      of_group.push_back(name != nullptr ? *name : c10::str("group.", g, ".", i));
      seen.add(of_group.back(), parameters[i]);
    }
  }
  return result;
}

SavedOptimizer saved_optimizer(const NamedState& state) {
  const json& values = *state.values;
  for (const char* key : {"kind", "param_groups", "state"}) {
    if (!values.is_object() || !values.contains(key)) refuse_form(c10::str("a key '", key, "'"));
  }
  SavedOptimizer saved{.groups = &values["param_groups"], .state = &values["state"]};
  if (values["kind"].is_string()) saved.kind = find_kind(values["kind"].get<std::string>());
  if (saved.kind == nullptr) {
    refuse_form(c10::str("a torch::optim optimizer as its kind, not ", values["kind"].dump()));
  }
  if (!saved.groups->is_array() || !std::ranges::all_of(*saved.groups, is_group)) {
    refuse_form("'param_groups' to be a list of objects with the names of their 'params'");
  }
  const auto is_object = [](const json& entry) { return entry.is_object(); };
  if (!saved.state->is_object() || !std::ranges::all_of(*saved.state, is_object)) {
    refuse_form("'state' to have an object for each parameter");
  }
  return saved;
}

std::string tensor_name(const Field& field, const std::string& parameter) {
  return c10::str(field.name, ".", parameter);
}

std::string element_name(const Field& field, std::size_t index, const std::string& parameter) {
  return c10::str(field.name, "[", index, "].", parameter);
}

json value_of(const Field& field) {
  if (const auto* value = field.as<int64_t>()) return *value;
  if (const auto* value = field.as<double>()) return number(*value);
  if (const auto* value = field.as<bool>()) return *value;
  if (const auto* pair = field.as<std::tuple<double, double>>()) {
    return json::array({number(std::get<0>(*pair)), number(std::get<1>(*pair))});
  }
  if (const auto* value = field.as<std::optional<int64_t>>()) {
    return value->has_value() ? json(**value) : json(nullptr);
  }
  if (const auto* text = field.as<std::optional<std::string>>()) {
    return text->has_value() ? json(**text) : json(nullptr);
  }
  if (const auto* list = field.as<TensorList>()) return list->size();
  if (const auto* list = field.as<ScratchList>(); list != nullptr && list->has_value()) {
    return (*list)->size();
  }
  return nullptr;
}

std::optional<std::string> set_value(const Field& field, const json& value) {
  constexpr auto kCount = "an integer of at least 0";
  if (auto* const count = field.as<int64_t>()) {
    if (!is_count(value)) return kCount;
    *count = value.get<int64_t>();
  } else if (auto* const fraction = field.as<double>()) {
    const auto given = number_in(value);
    if (!given) return "a number";
    *fraction = *given;
  } else if (auto* const flag = field.as<bool>()) {
    if (!value.is_boolean()) return "true or false";
    *flag = value.get<bool>();
  } else if (auto* const pair = field.as<std::tuple<double, double>>()) {
    const bool is_pair = value.is_array() && value.size() == 2;
    const auto first = is_pair ? number_in(value[0]) : std::nullopt;
    const auto second = is_pair ? number_in(value[1]) : std::nullopt;
    if (!first || !second) return "a list of two numbers";
    *pair = {*first, *second};
  } else if (auto* const limit = field.as<std::optional<int64_t>>()) {
    if (!value.is_null() && !is_count(value)) return c10::str(kCount, ", or null");
    *limit = value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
  } else if (auto* const text = field.as<std::optional<std::string>>()) {
    if (!value.is_null() && !value.is_string()) return "a string or null";
    *text = value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
  }
  return std::nullopt;
}

std::optional<double> number_in(const json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

void Faults::check(const std::string& problem, const std::string& hint) const {
  if (texts_.empty()) return;
  std::string list;
  for (std::size_t i = 0; i < std::min(texts_.size(), kMostFaults); ++i) {
    list += c10::str("\n  ", texts_[i]);
  }
  if (texts_.size() > kMostFaults) {
    list += c10::str("\n  and ", texts_.size() - kMostFaults, " more");
  }
  throw Error(c10::str(problem, "; ", hint, ":", list));
}

}  // namespace accelerant::optim::detail
