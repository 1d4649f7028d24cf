#include "accelerant/optim/optimizer_state.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"

namespace accelerant::optim {

ParameterNames::ParameterNames(const StateDict& parameters) { add(parameters); }

void ParameterNames::add(const StateDict& parameters, const std::string& prefix) {
  for (const auto& item : parameters) add(prefix + item.key(), item.value());
}

void ParameterNames::add(const std::string& name, const at::Tensor& parameter) {
  const auto [known, is_new] = parameters_.try_emplace(name, parameter);
  if (!is_new && !known->second.is_same(parameter)) {
    throw Error(ErrorDetails{.problem = c10::str("two parameters have the name '", name, "'"),
                             .hint = "give the parameters of each model a prefix of their own"});
  }
  names_.try_emplace(parameter.unsafeGetTensorImpl(), name);
}

const std::string* ParameterNames::find(const at::Tensor& parameter) const {
  const auto known = names_.find(parameter.unsafeGetTensorImpl());
  return known == names_.end() ? nullptr : &known->second;
}

}  // namespace accelerant::optim
