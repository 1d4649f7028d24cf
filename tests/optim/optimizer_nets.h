// A small model and every optimizer of torch::optim over it, for the tests of saved optimizers.
#pragma once

#include <accelerant/optim/optimizer_state.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using OptimizerMaker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

template <class Optimizer, class Options>
OptimizerMaker maker(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

struct OptimizerCase {
  std::string name;
  OptimizerMaker make;
};

inline std::vector<OptimizerCase> every_optimizer() {
  using namespace torch::optim;
  return {
      {"sgd", maker<SGD>(SGDOptions(0.1))},
      {"sgd_momentum", maker<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01))},
      {"sgd_nesterov", maker<SGD>(SGDOptions(0.1).momentum(0.8).nesterov(true))},
      {"adam", maker<Adam>(AdamOptions(0.01).weight_decay(0.1))},
      {"adam_amsgrad", maker<Adam>(AdamOptions(0.01).amsgrad(true).betas({0.8, 0.99}))},
      {"adamw", maker<AdamW>(AdamWOptions(0.01).eps(1e-7))},
      {"adamw_amsgrad", maker<AdamW>(AdamWOptions(0.01).amsgrad(true))},
      {"adagrad", maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.5))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(0.01).alpha(0.9))},
      {"rmsprop_centered", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true))},
      {"lbfgs", maker<LBFGS>(LBFGSOptions(0.1).max_iter(3).history_size(4))},
      {"lbfgs_single", maker<LBFGS>(LBFGSOptions(0.1).max_iter(1).max_eval(9))},
      {"lbfgs_wolfe", maker<LBFGS>(LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe"))},
  };
}

// A model and an optimizer for it. The layer `idle` takes no part in the loss.
struct Training {
  explicit Training(const OptimizerMaker& make) {
    net->push_back("first", torch::nn::Linear(3, 4));
    net->push_back("tanh", torch::nn::Tanh());
    net->push_back("last", torch::nn::Linear(4, 2));
    net->register_module("idle", torch::nn::Linear(2, 2));
    optimizer = make(net->parameters());
  }

  void take_weights_of(const Training& other) {
    const torch::NoGradGuard no_grad;
    auto source = other.net->parameters();
    auto target = net->parameters();
    for (std::size_t i = 0; i < target.size(); ++i) target[i].copy_(source[i]);
  }

  // Runs steps from, from + 1, ..., each with its own data.
  void run(int64_t from, int64_t steps) {
    for (int64_t step = from; step < from + steps; ++step) {
      const auto data = torch::arange(15).view({5, 3}).add(step).mul(0.37).sin();
      const auto target = torch::arange(10).view({5, 2}).add(step).cos();
      optimizer->step([&] {
        optimizer->zero_grad();
        auto loss = torch::mse_loss(net->forward(data), target);
        loss.backward();
        return loss;
      });
    }
  }

  accelerant::optim::ParameterNames names() const {
    return accelerant::optim::ParameterNames(net->named_parameters());
  }

  accelerant::NamedState save() const {
    return accelerant::optim::optimizer_state_dict(*optimizer, names());
  }

  void load(const accelerant::NamedState& state) {
    accelerant::optim::load_optimizer_state_dict(*optimizer, names(), state);
  }

  bool has_weights_of(const Training& other) const {
    const auto ours = net->parameters();
    const auto theirs = other.net->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (!ours[i].equal(theirs[i])) return false;
    }
    return true;
  }

  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// Whether both have the same weights after training for more steps.
inline bool go_on_alike(Training& a, Training& b, int64_t from, int64_t steps) {
  a.run(from, steps);
  b.run(from, steps);
  return a.has_weights_of(b);
}

inline Training adamw_training(int64_t steps) {
  Training training(maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)));
  training.run(0, steps);
  return training;
}

inline void expect_same_tensors(const accelerant::NamedState& actual,
                                const accelerant::NamedState& expected) {
  for (const auto& item : expected.tensors) {
    EXPECT_TRUE(item.value().equal(actual.tensors[item.key()])) << item.key();
  }
}

// As after writing and reading files: JSON as text, and copies of the tensors.
inline accelerant::NamedState written_and_read(const accelerant::NamedState& state) {
  accelerant::NamedState copy{.values = nlohmann::json::parse(state.values->dump())};
  for (const auto& item : state.tensors) copy.tensors.insert(item.key(), item.value().clone());
  return copy;
}
