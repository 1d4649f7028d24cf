// Loops for the tests of mistakes.
#pragma once

#include <tuple>

#include "accelerator/helpers.h"
#include "mistakes/said.h"

namespace mistakes {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::Precision;
using accelerant::WarningOptions;
using accelerator_test::counting_loader;
using accelerator_test::on_cpu;
using accelerator_test::OneWeight;
using accelerator_test::scalar;
using accelerator_test::Scale;

// Options that turn off the warning about a CPU that is slow in the precision.
inline AcceleratorOptions quiet_cpu(Precision precision = Precision::no, int64_t steps = 1) {
  auto options = on_cpu(precision, steps);
  options.warnings.slow_precision = false;
  return options;
}

inline AcceleratorOptions without(bool WarningOptions::*warning, AcceleratorOptions options) {
  options.warnings.*warning = false;
  return options;
}

// A generator and a critic of one weight each.
struct Gan {
  explicit Gan(const AcceleratorOptions& options) : accelerator(options) {
    std::tie(generator, critic, generator_optimizer, critic_optimizer) =
        accelerator.prepare(generator_net, critic_net, generator_sgd, critic_sgd);
  }

  Accelerator accelerator;
  Scale generator_net;
  Scale critic_net;
  torch::optim::SGD generator_sgd{generator_net->parameters(), 0.1};
  torch::optim::SGD critic_sgd{critic_net->parameters(), 0.1};
  accelerant::Model<Scale> generator;
  accelerant::Model<Scale> critic;
  accelerant::Optimizer generator_optimizer;
  accelerant::Optimizer critic_optimizer;
};

// A loop that does everything right.
inline void train(OneWeight& t, int64_t batches) {
  for (int64_t i = 0; i < batches; ++i) {
    auto window = t.accelerator.accumulate(t.model);
    t.backward(1e-3);
    t.optimizer.step();
    t.optimizer.zero_grad();
  }
}

// One weight, and a schedule.
struct Scheduled {
  explicit Scheduled(const AcceleratorOptions& options, int64_t total_steps = 10)
      : t(options, 1e-3),
        cosine(accelerant::optim::cosine_with_warmup(t.sgd, {.total_steps = total_steps})),
        scheduler(t.accelerator.prepare(cosine)) {}

  void step() {
    t.backward(1);
    t.optimizer.step();
    t.optimizer.zero_grad();
  }

  OneWeight t;
  accelerant::optim::LrScheduler cosine;
  accelerant::Scheduler scheduler;
};

}  // namespace mistakes
