// Small helpers for the tests of GradScaler.
#pragma once

#include <accelerant/amp/grad_scaler.h>
#include <torch/torch.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A scaler for any device, already initialised there.
inline accelerant::GradScaler started_scaler(at::Device device,
                                             accelerant::GradScalerOptions options = {}) {
  options.device = device.type();
  accelerant::GradScaler scaler(options);
  scaler.scale(torch::ones({}, device));
  return scaler;
}

inline accelerant::GradScaler started_scaler(at::Device device, double init_scale) {
  return started_scaler(device, accelerant::GradScalerOptions{.init_scale = init_scale});
}

// A parameter of zeros with the given gradient.
inline at::Tensor parameter_with_grad(const at::Tensor& gradient) {
  at::Tensor parameter = torch::zeros(gradient.sizes(), gradient.options().layout(at::kStrided));
  parameter.requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

inline int64_t growth_tracker(const accelerant::GradScaler& scaler) {
  return scaler.state_dict().at("_growth_tracker").get<int64_t>();
}

// Whether an optimizer has an overflow on any of its devices.
inline bool found(const accelerant::GradScaler& scaler, const torch::optim::Optimizer& optimizer) {
  bool any = false;
  for (const at::Tensor& flag : scaler.found_inf(optimizer)) any |= flag.item<float>() != 0.0F;
  return any;
}

inline bool all_equal(const at::Tensor& tensor, double value) {
  return tensor.to(at::kDouble).eq(value).all().item<bool>();
}

// A small network with its optimizer. Tests make two copies: one under test, one as control.
struct ModelAndOptimizer {
  torch::nn::Sequential model{nullptr};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

inline ModelAndOptimizer make_model(at::Device device, uint64_t seed, double lr = 1.0) {
  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  model->to(device);
  auto optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), lr);
  return {std::move(model), std::move(optimizer)};
}

inline double largest_difference(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  double largest = 0;
  const auto left = a->parameters();
  const auto right = b->parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    largest = std::max(largest, (left[i] - right[i]).abs().max().item<double>());
  }
  return largest;
}
