#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/accelerator/utilities.h"
#include "accelerant/core/error.h"
#include "helpers/selftest/checks.h"

namespace accelerant::selftest {
namespace {

constexpr int64_t kBatch = 4;  // per process
constexpr int64_t kSteps = 10;
constexpr double kRate = 0.05;

}  // namespace

void check_training(Accelerator& accelerator) {
  set_seed(7);
  const int64_t rows = kBatch * accelerator.num_processes();
  const at::Tensor inputs = at::randn({rows * kSteps, 3});
  const at::Tensor targets = at::randn({rows * kSteps, 2});

  torch::nn::Linear net(3, 2);
  torch::nn::Linear alone(std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->clone()));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate).momentum(0.9));
  auto batches = data::loader(data::tensors(inputs, targets), {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  for (auto&& [x, y] : loader) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(at::mse_loss(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
  }

  torch::optim::SGD sgd_alone(alone->parameters(), torch::optim::SGDOptions(kRate).momentum(0.9));
  for (int64_t step = 0; step < kSteps; ++step) {
    sgd_alone.zero_grad();
    at::mse_loss(alone(inputs.narrow(0, step * rows, rows)), targets.narrow(0, step * rows, rows))
        .backward();
    sgd_alone.step();
  }
  const at::Tensor weight = net->weight.detach().cpu();
  const double difference = weight.sub(alone->weight.detach()).abs().max().item<double>();
  if (difference > 1e-4) {
    throw Error(ErrorDetails{.problem = "The model after ten steps",
                             .expected = "the same as one process with all the data",
                             .got = c10::str("weights that differ by up to ", difference)});
  }
  const at::Tensor all = accelerator.gather(net->weight.detach().unsqueeze(0));
  if (all.eq(all.slice(0, 0, 1)).all().item<bool>()) return;
  throw Error(ErrorDetails{.problem = "The models after ten steps",
                           .expected = "the same in all processes",
                           .got = "different weights"});
}

void check_loss_scaling() {
  Accelerator accelerator({.mixed_precision = Precision::fp16});
  set_seed(7);
  torch::nn::Linear net(3, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const bool overflows = accelerator.is_last_process();
  const double factor = overflows ? std::numeric_limits<double>::infinity() : 1.0;
  const at::Tensor x = at::randn({kBatch, 3}).to(accelerator.device());
  accelerator.backward(model(x).mean().mul(factor));
  if (optimizer.step().skipped()) return;
  throw Error(ErrorDetails{.problem = "A step with an overflow in one process",
                           .expected = "skipped by all processes",
                           .got = "not skipped by this one"});
}

}  // namespace accelerant::selftest
