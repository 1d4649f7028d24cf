// Compares training on several processes with the same training on one, written in plain libtorch.
#pragma once

#include <accelerant/accelerant.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "support/parameter_hash.h"
#include "support/ranks.h"

namespace processes_test {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;

constexpr int64_t kFeatures = 6;
constexpr int64_t kClasses = 4;
constexpr int64_t kBatch = 4;  // per process

// How the program computes its loss.
enum class Loss {
  mean,   // backward(mean over the rows)
  items,  // backward(sum over the weighted rows, number of those rows); weights are 0 or 1
};

struct Run {
  AcceleratorOptions options = {.cpu = true};
  Loss loss = Loss::mean;
  int64_t steps = 10;  // batches per process
  double tolerance = 1e-6;
};

struct Rows {
  torch::Tensor inputs;
  torch::Tensor targets;
  torch::Tensor weights;  // 0 or 1
};

inline Rows make_rows(int64_t count) {
  return {.inputs = torch::randn({count, kFeatures}),
          .targets = torch::randint(kClasses, {count}),
          .weights = torch::bernoulli(torch::full({count}, 0.6)).to(torch::kLong)};
}

inline torch::nn::Sequential mlp() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(kFeatures, 16), nn::Tanh(), nn::Linear(16, 16), nn::Tanh(),
                        nn::Linear(16, kClasses));
}

inline torch::Tensor row_losses(const torch::Tensor& outputs, const torch::Tensor& targets) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(outputs, targets, F::CrossEntropyFuncOptions().reduction(torch::kNone));
}

// One process with the batches of all processes. Trains `net` in place.
template <class Net>
void train_alone(Net& net, const Rows& rows, int64_t batch, const Run& run) {
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const int64_t window = run.options.gradient_accumulation.steps.value_or(1);
  for (int64_t first = 0; first < run.steps; first += window) {
    const int64_t last = std::min(first + window, run.steps);
    sgd.zero_grad();
    torch::Tensor loss_sum = torch::zeros({});
    for (int64_t step = first; step < last; ++step) {
      const auto part = [&](const torch::Tensor& t) { return t.narrow(0, step * batch, batch); };
      const auto losses = row_losses(net->forward(part(rows.inputs)), part(rows.targets));
      loss_sum =
          loss_sum + (run.loss == Loss::mean ? losses.mean() / static_cast<double>(last - first)
                                             : (losses * part(rows.weights)).sum());
    }
    if (run.loss == Loss::items) {
      const auto range = rows.weights.narrow(0, first * batch, (last - first) * batch);
      loss_sum = loss_sum / range.sum().clamp_min(1);
    }
    loss_sum.backward();
    sgd.step();
  }
}

// This process's part of the training, through the Accelerator.
template <class Net>
void train_together(Accelerator& accelerator, Net& net, const Rows& rows, const Run& run) {
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto batches = accelerant::data::loader(
      accelerant::data::tensors(rows.inputs, rows.targets, rows.weights), {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  for (auto&& [inputs, targets, weights] : loader) {
    auto window = accelerator.accumulate(model);
    const auto losses = row_losses(model(inputs), targets);
    if (run.loss == Loss::mean) {
      accelerator.backward(losses.mean());
    } else {
      accelerator.backward((losses * weights).sum(), weights.sum());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
}

template <class Net>
std::vector<torch::Tensor> parameters_of(const Net& net) {
  return net->parameters();
}

// Trains both ways from the same start and compares the parameters.
template <class MakeNet, class MakeReference>
void expect_same_as_one_process(const Run& run, MakeNet&& make_net,
                                MakeReference&& make_reference) {
  torch::manual_seed(7);
  auto net = make_net();
  auto reference = make_reference();
  {
    const torch::NoGradGuard no_grad;
    const auto from = net->parameters();
    const auto to = reference->parameters();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    // Only the main process starts with the right values; the others must take them over.
    if (rank() != 0) {
      for (torch::Tensor parameter : from) parameter.add_(1);
    }
  }
  const Rows rows = make_rows(run.steps * kBatch * num_ranks());

  Accelerator accelerator(run.options);
  ASSERT_EQ(accelerator.num_processes(), num_ranks());
  train_together(accelerator, net, rows, run);
  train_alone(reference, rows, kBatch * num_ranks(), run);

  const auto own = net->parameters();
  const auto expected = reference->parameters();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double difference = (own[i].cpu() - expected[i]).abs().max().template item<double>();
    EXPECT_LE(difference, run.tolerance) << net->named_parameters().keys()[i];
  }
  expect_same_on_all_ranks(accelerator.world(), own);
}

template <class MakeNet>
void expect_same_as_one_process(const Run& run, MakeNet&& make_net) {
  expect_same_as_one_process(run, make_net, make_net);
}

}  // namespace processes_test
