// How the fused kernels step the optimizers of torch::optim: the rule of a group, its options, and
// the tensors that the rule needs from a parameter's state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fused_rules.h"
#include "optim/optimizer_kinds.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace accelerant::optim::detail {

// Null unless the optimizer's class is exactly one of these: a derived class may step differently.
const OptimizerKind* find_fused_kind(const torch::optim::Optimizer& optimizer);

// Reads the options of one param group, afresh each time: they may change between steps.
class OptionReader {
 public:
  OptionReader(const OptimizerKind& kind, torch::optim::OptimizerOptions& options);

  // Whether it was created from these options.
  bool reads(const torch::optim::OptimizerOptions& options) const { return source_ == &options; }

  kernels::Rule rule() const;
  kernels::Hyper hyper() const;

  // For Adagrad: the initial value of its sums.
  double first_sum() const;

 private:
  enum class Family { sgd, adam, adamw, adagrad, rmsprop, lion };

  const torch::optim::OptimizerOptions* source_;
  Family family_;
  // Pointers into the options; null for options that the optimizer lacks.
  const double* lr_ = nullptr;
  const std::tuple<double, double>* betas_ = nullptr;
  const double* alpha_ = nullptr;
  const double* eps_ = nullptr;
  const double* weight_decay_ = nullptr;
  const double* momentum_ = nullptr;
  const double* dampening_ = nullptr;
  const double* lr_decay_ = nullptr;
  const double* first_sum_ = nullptr;
  const bool* amsgrad_ = nullptr;
  const bool* nesterov_ = nullptr;
  const bool* centered_ = nullptr;
};

// What the rule needs from a parameter's state. Points into it.
struct FusedState {
  torch::optim::OptimizerParamState* state = nullptr;
  std::vector<at::Tensor*> tensors;  // in the order of the rule
  at::Tensor* master = nullptr;      // null if the state has no field for one
  int64_t* step = nullptr;           // null if the optimizer does not count steps
};

// Creates an empty state if there is none; with a field for a master copy if asked for.
FusedState fused_state_of(const OptimizerKind& kind, torch::optim::Optimizer& optimizer,
                          const at::Tensor& parameter, kernels::Rule rule, bool with_master);

}  // namespace accelerant::optim::detail
