// How the optimizers of torch::optim are stepped by the fused kernels: the rule of a group, its
// options, and the tensors that the rule needs of a parameter's state.
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

// Null unless the optimizer is exactly of one of the classes: a derived one may step in its own
// way.
const OptimizerKind* find_fused_kind(const torch::optim::Optimizer& optimizer);

// Reads the options of one param group, each time anew: they may change between steps.
class OptionReader {
 public:
  OptionReader(const OptimizerKind& kind, torch::optim::OptimizerOptions& options);

  // Whether it was made from these.
  bool reads(const torch::optim::OptimizerOptions& options) const { return source_ == &options; }

  kernels::Rule rule() const;
  kernels::Hyper hyper() const;

  // Of Adagrad, what its sums begin with.
  double first_sum() const;

 private:
  enum class Family { sgd, adam, adamw, adagrad, rmsprop, lion };

  const torch::optim::OptimizerOptions* source_;
  Family family_;
  // Into the options; null for those that the optimizer lacks.
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

// What the rule needs of a parameter's state. Points into it.
struct FusedState {
  torch::optim::OptimizerParamState* state = nullptr;
  std::vector<at::Tensor*> tensors;  // in the order of the rule
  at::Tensor* master = nullptr;      // null if there is no room for one
  int64_t* step = nullptr;           // null if the optimizer does not count
};

// Makes the state, empty, if there is none; with room for a master copy if asked for.
FusedState fused_state_of(const OptimizerKind& kind, torch::optim::Optimizer& optimizer,
                          const at::Tensor& parameter, kernels::Rule rule, bool with_master);

}  // namespace accelerant::optim::detail
