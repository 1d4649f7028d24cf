// What the parts of saving and loading an optimizer share: names of parameters and tensors, values
// as JSON, and a list of faults.
#pragma once

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/optim/optimizer_state.h"
#include "optim/optimizer_kinds.h"

namespace accelerant::optim::detail {

// Throws Error if the optimizer is none of torch::optim's.
const OptimizerKind& require_kind(const torch::optim::Optimizer& optimizer);

// Of each group, the names of its parameters. Throws Error if two parameters share one.
using GroupNames = std::vector<std::vector<std::string>>;
GroupNames names_in_groups(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

// A state in the form of optimizer_state_dict. Points into the state it was made from.
struct SavedOptimizer {
  const OptimizerKind* kind = nullptr;
  const nlohmann::json* groups = nullptr;  // a list of objects, each with a list of names, "params"
  const nlohmann::json* state = nullptr;   // an object of objects
};

// Throws Error if it is not of that form.
SavedOptimizer saved_optimizer(const NamedState& state);

// "exp_avg.fc.weight" and "old_dirs[3].fc.weight".
std::string tensor_name(const Field& field, const std::string& parameter);
std::string element_name(const Field& field, std::size_t index, const std::string& parameter);

// Values of fields. For a list it is the length, null for one that is not there; a tensor has none.
nlohmann::json value_of(const Field& field);

// Sets a field that is no tensor or list. If the value is not of its type, says what would be.
std::optional<std::string> set_value(const Field& field, const nlohmann::json& value);

// The number, also for "inf", "-inf" and "nan".
std::optional<double> number_in(const nlohmann::json& value);

class Faults {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    texts_.push_back(c10::str(parts...));
  }

  bool empty() const { return texts_.empty(); }

  // Throws Error with all of them if there are any.
  void check(const std::string& problem, const std::string& hint) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace accelerant::optim::detail
