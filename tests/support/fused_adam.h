// An AMP-aware optimizer over ATen's fused Adam, as a test double for the interface.
#pragma once

#include <accelerant/amp/grad_scaler.h>
#include <torch/torch.h>

#include <map>
#include <vector>

class FusedAdam : public torch::optim::Optimizer, public accelerant::AmpOptimizer {
 public:
  explicit FusedAdam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions options = {})
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::AdamOptions>(options)) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = closure ? closure() : at::Tensor();
    run(std::nullopt, std::nullopt);
    return loss;
  }

  at::Tensor step(const accelerant::AmpStepControls& controls) override {
    seen = controls;
    run(controls.grad_scale, controls.found_inf);
    return {};
  }

  // The step count of a parameter, 0 before the first step.
  double steps_of(const at::Tensor& parameter) const {
    const auto entry = moments_.find(parameter.unsafeGetTensorImpl());
    return entry == moments_.end() ? 0.0 : entry->second.step.item<double>();
  }

  accelerant::AmpStepControls seen;  // what the last step received

 private:
  struct Moments {
    at::Tensor mean, variance, max_variance, step;
  };

  void run(const std::optional<at::Tensor>& grad_scale_or_none,
           const std::optional<at::Tensor>& found_inf) {
    const torch::NoGradGuard no_grad;
    const auto& options = static_cast<torch::optim::AdamOptions&>(param_groups()[0].options());
    for (at::Tensor& parameter : param_groups()[0].params()) {
      if (!parameter.grad().defined()) continue;
      Moments& moments = moments_of(parameter);
      const auto here = [&](const std::optional<at::Tensor>& control) {
        return control && control->defined() ? std::optional(control->to(parameter.device()))
                                             : std::nullopt;
      };
      moments.step.add_(1);
      at::_fused_adam_({parameter}, {parameter.grad()}, {moments.mean}, {moments.variance},
                       options.amsgrad() ? std::vector<at::Tensor>{moments.max_variance}
                                         : std::vector<at::Tensor>{},
                       {moments.step}, options.lr(), std::get<0>(options.betas()),
                       std::get<1>(options.betas()), options.weight_decay(), options.eps(),
                       options.amsgrad(), /*maximize=*/false, here(grad_scale_or_none),
                       here(found_inf));
      if (found_inf) moments.step.sub_(found_inf->to(parameter.device()));
    }
  }

  Moments& moments_of(const at::Tensor& parameter) {
    auto [entry, is_new] = moments_.try_emplace(parameter.unsafeGetTensorImpl());
    if (is_new) {
      entry->second = {
          torch::zeros_like(parameter), torch::zeros_like(parameter), torch::zeros_like(parameter),
          torch::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false))};
    }
    return entry->second;
  }

  std::map<c10::TensorImpl*, Moments> moments_;
};
