// What the tests of FusedStep share.
#pragma once

#include <accelerant/optim/fused_step.h>
#include <accelerant/optim/lion.h>
#include <gtest/gtest.h>

#include "optim/optimizer_nets.h"

// Every optimizer that the fused step takes.
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

// Parameters of awkward shapes: odd, one element, none, no dimension, several blocks, at an odd address.
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

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone().requires_grad_());
  }
  return copies;
}

inline void set_random_gradients(const std::vector<at::Tensor>& parameters, double scale = 1.0) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn_like(parameter).detach().mul_(scale);
  }
}

// With weight decay, a gradient of 16 bits may cancel its parameter to nothing but rounding, of which optimizers that
// divide by its size make a whole step. These are too large for that.
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
    to[i].mutable_grad() = gradient.defined() ? gradient.detach().mul(factor) : at::Tensor();
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
