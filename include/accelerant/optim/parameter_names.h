// The names of parameters, for what is saved of an optimizer: an optimizer itself knows none.
//
//   accelerant::optim::ParameterNames names(net->named_parameters());
//
//   accelerant::optim::ParameterNames names;                  // two models, one optimizer
//   names.add(generator->named_parameters(), "generator.");
//   names.add(discriminator->named_parameters(), "discriminator.");
//
// Holds the parameters, so that a name is never taken for another tensor at the same address.
#pragma once

#include <string>
#include <unordered_map>

#include "accelerant/tensor/state_dict.h"

namespace accelerant::optim {

class ParameterNames {
 public:
  // No names: parameters are then called by their place in the optimizer.
  ParameterNames() = default;

  explicit ParameterNames(const StateDict& parameters);

  // Each name gets the prefix. A parameter that has a name keeps it (tied weights have two). A name that another
  // parameter has is an Error.
  void add(const StateDict& parameters, const std::string& prefix = "");
  void add(const std::string& name, const at::Tensor& parameter);

  // The name of the parameter, or null.
  const std::string* find(const at::Tensor& parameter) const;

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

}  // namespace accelerant::optim
