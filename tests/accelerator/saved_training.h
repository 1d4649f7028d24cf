// A small training for the tests of saving and resuming.
#pragma once

#include <string>
#include <tuple>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace accelerator_test {

inline accelerant::AcceleratorOptions in_project(const TempFolder& folder,
                                                 const std::string& resume = "no") {
  auto options = on_cpu();
  options.project = {.dir = folder.path(), .resume = resume};
  return options;
}

template <class F>
void expect_error(F&& f, std::initializer_list<std::string> parts) {
  const std::string text = whole_error_of(f);
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part));
}

// A training with one of everything.
struct Training {
  explicit Training(const accelerant::AcceleratorOptions& options, int64_t width = 3)
      : accelerator(options),
        net(2, width),
        sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {
    std::tie(model, optimizer, loader, scheduler) = accelerator.prepare(net, sgd, batches, decay);
  }

  void step() {
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  accelerant::Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
  torch::optim::StepLR decay{sgd, 2, 0.5};
  decltype(counting_loader(8)) batches = counting_loader(8, {.batch_size = 2, .shuffle = true});
  accelerant::Model<torch::nn::Linear> model;
  accelerant::Optimizer optimizer;
  decltype(counting_loader(8)) loader;
  accelerant::Scheduler scheduler;
};

inline double rate_of(Training& training) {
  return static_cast<torch::optim::SGDOptions&>(training.sgd.param_groups()[0].options()).lr();
}

}  // namespace accelerator_test
