// Lion ("evolved sign momentum", Chen et al. 2023), which libtorch lacks: half the memory of Adam,
// and steps of equal size in every element.
//
//   using accelerant::optim::Lion, accelerant::optim::LionOptions;
//   Lion lion(net->parameters(), LionOptions(1e-4).weight_decay(0.1));
//
//   update = sign(beta1 * exp_avg + (1 - beta1) * gradient)
//   p      = p - lr * weight_decay * p - lr * update
//   exp_avg = beta2 * exp_avg + (1 - beta2) * gradient
//
// An ordinary torch::optim::Optimizer: schedules, GradScaler, torch::save and
// optimizer_state_dict() work with it, and FusedStep steps it in one kernel. The learning rate is
// usually 3 to 10 times smaller than Adam's, the weight decay as many times larger.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <tuple>
#include <vector>

namespace accelerant::optim {

struct LionOptions : public torch::optim::OptimizerCloneableOptions<LionOptions> {
  using betas_t = std::tuple<double, double>;

  LionOptions(double lr = 1e-4);  // NOLINT(google-explicit-constructor): as torch's own

  // The size of a step in every element. At least 0. Default: 1e-4.
  TORCH_ARG(double, lr) = 1e-4;

  // The weight of the average in the update, and its decay. In [0, 1). Default: 0.9 and 0.99.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);

  // Decoupled, as in AdamW. At least 0. Default: 0.
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

struct LionParamState : public torch::optim::OptimizerCloneableParamState<LionParamState> {
  // The average of the gradients, in the type and shape of the parameter.
  TORCH_ARG(at::Tensor, exp_avg);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class Lion : public torch::optim::Optimizer {
 public:
  // Throws Error if an option is out of range.
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                const LionOptions& defaults = {});
  explicit Lion(std::vector<at::Tensor> parameters, const LionOptions& defaults = {});

  // Throws Error for sparse gradients.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace accelerant::optim
