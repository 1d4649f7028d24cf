// What saving and loading of optimizers share: names of parameters and tensors, values as JSON, and
// a list of faults.
#pragma once

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/optim/optimizer_state.h"
#include "optim/optimizer_kinds.h"

namespace accelerant::optim::detail {

// Throws Error if the optimizer is not of a known kind.
const OptimizerKind& require_kind(const torch::optim::Optimizer& optimizer);

// The names of the parameters of each group. Throws Error if two parameters share one.
using GroupNames = std::vector<std::vector<std::string>>;
GroupNames names_in_groups(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

// A state in the form of optimizer_state_dict. Points into the state it was created from.
struct SavedOptimizer {
  const OptimizerKind* kind = nullptr;
  const nlohmann::json* groups = nullptr;  // a list of objects, each with a list of names, "params"
  const nlohmann::json* state = nullptr;   // an object of objects
};

// Throws Error if it does not have that form.
SavedOptimizer saved_optimizer(const NamedState& state);

// "exp_avg.fc.weight" and "old_dirs[3].fc.weight".
std::string tensor_name(const Field& field, const std::string& parameter);
std::string element_name(const Field& field, std::size_t index, const std::string& parameter);

// The value of a field. For a list it is the length, or null if there is none; a tensor has no
// value.
nlohmann::json value_of(const Field& field);

// Sets a field that is not a tensor or list. If the value has the wrong type, returns what was
// expected.
std::optional<std::string> set_value(const Field& field, const nlohmann::json& value);

// The number; also parses "inf", "-inf" and "nan".
std::optional<double> number_in(const nlohmann::json& value);

class Faults {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    texts_.push_back(c10::str(parts...));
  }

  bool empty() const { return texts_.empty(); }

  // Throws an Error with all faults if there are any.
  void check(const std::string& problem, const std::string& hint) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace accelerant::optim::detail
