// What the tests of FusedStep share.
#pragma once

#include <accelerant/optim/fused_step.h>
#include <accelerant/optim/lion.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "optim/optimizer_nets.h"

// Every optimizer that the fused step supports.
inline std::vector<OptimizerCase> fused_optimizers() {
  using namespace torch::optim;
  std::vector<OptimizerCase> cases;
  for (OptimizerCase& known : every_optimizer()) {
    if (!known.name.starts_with("lbfgs")) cases.push_back(std::move(known));
  }
  cases.push_back({"adamw_decay", maker<AdamW>(AdamWOptions(0.01).weight_decay(0.1))});
  cases.push_back(
      {"rmsprop_momentum", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).weight_decay(0.1))});
  cases.push_back({"rmsprop_center", maker<RMSprop>(RMSpropOptions(0.01).centered(true))});
  cases.push_back({"lion", maker<accelerant::optim::Lion>(
                               accelerant::optim::LionOptions(0.01).weight_decay(0.1))});
  return cases;
}

// Parameters of awkward shapes: odd, one element, empty, no dimension, several blocks, at an odd
// address.
inline std::vector<at::Tensor> awkward_parameters(at::TensorOptions options) {
  std::vector<at::Tensor> parameters;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {3, 5}, {1}, {0}, {}, {2, 0, 3}, {17}, {40'003}, {129, 128}}) {
    parameters.push_back(torch::randn(shape, options));
  }
  parameters.push_back(torch::randn({1001}, options).narrow(0, 1, 999));
  for (at::Tensor& parameter : parameters) parameter = parameter.detach().requires_grad_();
  return parameters;
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors,
                                         std::optional<at::ScalarType> type = std::nullopt) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach()
                         .to(type.value_or(tensor.scalar_type()), /*non_blocking=*/false,
                             /*copy=*/true)
                         .requires_grad_());
  }
  return copies;
}

// Two optimizers of the same kind over parameters with the same values: FusedStep steps one, the
// other steps itself.
struct Twins {
  std::vector<at::Tensor> ours;
  std::vector<at::Tensor> theirs;
  std::unique_ptr<torch::optim::Optimizer> optimizer;  // over ours
  std::unique_ptr<torch::optim::Optimizer> stock;      // over theirs
};

inline Twins twins(const OptimizerCase& kind, at::TensorOptions options,
                   std::optional<at::ScalarType> type_of_theirs = std::nullopt) {
  Twins made;
  made.ours = awkward_parameters(options);
  made.theirs = copies_of(made.ours, type_of_theirs);
  made.optimizer = kind.make(made.ours);
  made.stock = kind.make(made.theirs);
  return made;
}

inline void set_random_gradients(const std::vector<at::Tensor>& parameters, double scale = 1.0) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn_like(parameter).detach().mul_(scale);
  }
}

// With weight decay, a 16-bit gradient may cancel its parameter to mere rounding, which optimizers
// that divide by its size turn into a whole step. These gradients are too large for that.
inline void set_large_random_gradients(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = torch::randn_like(parameter).detach();
    parameter.mutable_grad() = values + values.sign();
  }
}

inline void copy_gradients(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to,
                           double factor = 1.0) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const at::Tensor& gradient = from[i].grad();
    to[i].mutable_grad() =
        gradient.defined() ? gradient.detach().to(to[i].scalar_type()).mul(factor) : at::Tensor();
  }
}

inline void expect_close(const std::vector<at::Tensor>& actual,
                         const std::vector<at::Tensor>& expected, double tolerance,
                         const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i].to(at::kDouble), expected[i].to(at::kDouble), tolerance,
                                tolerance))
        << what << ", parameter " << i << ": off by "
        << (actual[i].to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>();
  }
}

inline void expect_same(const std::vector<at::Tensor>& actual,
                        const std::vector<at::Tensor>& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << what << ", parameter " << i;
  }
}
