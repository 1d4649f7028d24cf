#include "accelerant/optim/lion.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include "accelerant/core/error.h"

namespace accelerant::optim {
namespace {

void require_in_range(bool in_range, const char* name, double value, const char* expected) {
  if (in_range) return;
  throw Error(ErrorDetails{.problem = c10::str("Lion: the ", name, " is out of range"),
                           .expected = expected,
                           .got = c10::str(value)});
}

void require_valid(const LionOptions& options) {
  require_in_range(options.lr() >= 0, "learning rate", options.lr(), "at least 0");
  require_in_range(options.weight_decay() >= 0, "weight decay", options.weight_decay(),
                   "at least 0");
  const auto [first, second] = options.betas();
  for (const double beta : {first, second}) {
    require_in_range(beta >= 0 && beta < 1, "beta", beta, "at least 0 and less than 1");
  }
}

}  // namespace

LionOptions::LionOptions(double lr) : lr_(lr) {}

void LionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void LionOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

double LionOptions::get_lr() const { return lr(); }
void LionOptions::set_lr(double lr) { this->lr(lr); }

void LionParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
}

void LionParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg);
}

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
           const LionOptions& defaults)
    : Optimizer(param_groups, std::make_unique<LionOptions>(defaults)) {
  require_valid(defaults);
  for (auto& group : this->param_groups()) {
    require_valid(static_cast<LionOptions&>(group.options()));
  }
}

Lion::Lion(std::vector<at::Tensor> parameters, const LionOptions& defaults)
    : Lion({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

at::Tensor Lion::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const LionOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    for (at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) {
        throw Error("Lion does not support sparse gradients",
                    "make the gradient dense or use SGD for this parameter");
      }
      auto& state = this->state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) {
        auto fresh = std::make_unique<LionParamState>();
        fresh->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        state = std::move(fresh);
      }
      at::Tensor& average = static_cast<LionParamState&>(*state).exp_avg();
      if (options.weight_decay() != 0) {
        parameter.mul_(1.0 - options.lr() * options.weight_decay());
      }
      const at::Tensor direction = average.mul(beta1).add_(gradient, 1.0 - beta1).sign_();
      parameter.add_(direction, -options.lr());
      average.mul_(beta2).add_(gradient, 1.0 - beta2);
    }
  }
  return loss;
}

void Lion::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LionParamState, LionOptions>(archive, *this);
}

void Lion::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LionParamState, LionOptions>(archive, *this);
}

}  // namespace accelerant::optim
