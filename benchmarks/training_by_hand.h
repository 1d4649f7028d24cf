// What a libtorch program has to write itself without Accelerant: autocast, loss scaling and a
// schedule.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <vector>

class AutocastByHand {
 public:
  AutocastByHand(at::DeviceType device, std::optional<at::ScalarType> type) : device_(device) {
    if (!type) return;
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, *type);
    at::autocast::increment_nesting();
    active_ = true;
  }
  ~AutocastByHand() {
    if (!active_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  AutocastByHand(const AutocastByHand&) = delete;
  AutocastByHand& operator=(const AutocastByHand&) = delete;

 private:
  at::DeviceType device_;
  bool active_ = false;
};

class ScalerByHand {
 public:
  explicit ScalerByHand(at::Device device)
      : scale_(at::full({}, 65536.0, at::TensorOptions().device(device).dtype(at::kFloat))),
        tracker_(at::zeros({}, at::TensorOptions().device(device).dtype(at::kInt))) {}

  at::Tensor scale(const at::Tensor& loss) const { return loss * scale_; }

  void unscale(const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
    found_inf_ = at::zeros({}, scale_.options());
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found_inf_, scale_.to(at::kDouble).reciprocal().to(at::kFloat));
  }

  // Returns whether the optimizer stepped.
  bool step(torch::optim::Optimizer& optimizer) {
    const bool found = found_inf_.item<float>() != 0.0F;
    if (!found) optimizer.step();
    at::_amp_update_scale_(scale_, tracker_, found_inf_, 2.0, 0.5, 2000);
    return !found;
  }

 private:
  at::Tensor scale_, tracker_, found_inf_;
};

class CosineByHand {
 public:
  CosineByHand(torch::optim::Optimizer& optimizer, int64_t steps)
      : optimizer_(optimizer), steps_(static_cast<double>(steps)) {
    for (const auto& group : optimizer.param_groups()) base_.push_back(group.options().get_lr());
  }

  void step() {
    const double factor = 0.5 * (1.0 + std::cos(std::numbers::pi * ++step_ / steps_));
    auto& groups = optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(base_[i] * factor);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  double step_ = 0.0;
  double steps_;
  std::vector<double> base_;
};

// A tensor data set of images or tokens, for torch::data.
class RowsByHand : public torch::data::datasets::Dataset<RowsByHand> {
 public:
  RowsByHand(at::Tensor data, at::Tensor target)
      : data_(std::move(data)), target_(std::move(target)) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {data_[row], target_[row]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(data_.size(0));
  }

 private:
  at::Tensor data_, target_;
};
