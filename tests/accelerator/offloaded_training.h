// What the tests of AcceleratorOptions::offload share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerator/helpers.h"
#include "optim/step_plan.h"

namespace accelerator_test {

// How the optimizer's state is kept. On the CPU, host and device have the same memory; `apart`
// plays a device of its own there, so that everything is copied.
enum class Keeping { beside, on_host, apart };

class KeepingScope {
 public:
  explicit KeepingScope(Keeping keeping) {
    accelerant::optim::detail::images_on_every_device() = keeping == Keeping::apart;
  }
  ~KeepingScope() { accelerant::optim::detail::images_on_every_device() = false; }
  KeepingScope(const KeepingScope&) = delete;
  KeepingScope& operator=(const KeepingScope&) = delete;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class O, class Options>
MakeOptimizer optimizer_of(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

inline std::vector<MakeOptimizer> all_fused_kinds() {
  using namespace torch::optim;
  return {optimizer_of<SGD>(SGDOptions(0.05)),
          optimizer_of<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
          optimizer_of<Adam>(AdamOptions(0.02).amsgrad(true)),
          optimizer_of<AdamW>(AdamWOptions(0.02).weight_decay(0.1)),
          optimizer_of<Adagrad>(AdagradOptions(0.05).lr_decay(0.01)),
          optimizer_of<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true)),
          optimizer_of<accelerant::optim::Lion>(accelerant::optim::LionOptions(0.01))};
}

inline MakeOptimizer adamw() { return all_fused_kinds()[3]; }

struct OffloadSetup {
  accelerant::AcceleratorOptions options = on_cpu();
  Keeping keeping = Keeping::on_host;
  MakeOptimizer make = adamw();
  at::ScalarType type = at::kFloat;  // of the parameters
  int64_t batches = 11;
  double max_norm = 0.5;   // 0: none
  bool overflows = false;  // in one batch
};

struct OffloadedNetImpl : torch::nn::Module {
  OffloadedNetImpl() {
    // Not all parameters are contiguous, or have gradients.
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    frozen->weight.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = conv(x.view({-1, 2, 3, 3}).to(conv->weight.scalar_type())).flatten(1);
    return out(frozen(y).tanh());
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(2, 4, 2));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(16, 7));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(7, 3));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(2, 2));
};
TORCH_MODULE(OffloadedNet);

// A training whose batches depend on their numbers only.
class OffloadedTraining {
 public:
  explicit OffloadedTraining(const OffloadSetup& setup)
      : setup_(setup), scope_(setup.keeping), accelerator(with_offload(setup)) {
    net->to(setup.type);
    original = setup.make(trainable());
    schedule.emplace(
        accelerant::optim::cosine_with_warmup(*original, {.warmup_steps = 2, .total_steps = 9}));
    model = accelerator.prepare(net);
    optimizer = accelerator.prepare(*original);
    scheduler = accelerator.prepare(*schedule);
  }

  void batch(int64_t number) {
    torch::manual_seed(static_cast<uint64_t>(100 + number));
    auto window = accelerator.accumulate(model);
    at::Tensor loss = loss_of(torch::randn({4, 18}).to(accelerator.device()));
    if (setup_.overflows && number == 5) loss = loss * 1e38 * 1e38;
    accelerator.backward(loss);
    if (setup_.max_norm > 0) {
      if (const auto norm = accelerator.clip_grad_norm_(model, setup_.max_norm)) {
        const auto value = norm->item<double>();
        norms.push_back(std::isnan(value) ? -1 : value);  // nan is not equal to itself
      }
    }
    optimizer.step();
    scheduler.step();
    rates.push_back(scheduler.get_last_lr()[0]);
    skipped.push_back(optimizer.step_was_skipped());
    optimizer.zero_grad();
  }

  void run(int64_t from = 0) {
    for (int64_t number = from; number < setup_.batches; ++number) batch(number);
  }

  at::Tensor loss_of(const at::Tensor& x) { return model(x).to(at::kFloat).square().sum(); }

  // Parameters and all tensors of the optimizer's state.
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().cpu());
    const accelerant::optim::ParameterNames names(model.named_parameters());
    for (const auto& item : accelerant::optim::optimizer_state_dict(*original, names).tensors) {
      all.push_back(item.value().cpu().clone());
    }
    return all;
  }

  std::vector<at::Tensor> trainable() {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    return parameters;
  }

 private:
  static accelerant::AcceleratorOptions with_offload(const OffloadSetup& setup) {
    accelerant::AcceleratorOptions options = setup.options;
    options.warnings.slow_precision = false;
    options.offload.optimizer = setup.keeping != Keeping::beside;
    return options;
  }
  static OffloadedNet seeded() {
    torch::manual_seed(3);
    return OffloadedNet();
  }

  OffloadSetup setup_;
  KeepingScope scope_;

 public:
  accelerant::Accelerator accelerator;
  OffloadedNet net = seeded();
  std::unique_ptr<torch::optim::Optimizer> original;
  std::optional<accelerant::optim::LrScheduler> schedule;
  accelerant::Model<OffloadedNet> model;
  accelerant::Optimizer optimizer;
  accelerant::Scheduler scheduler;
  std::vector<double> norms = {};
  std::vector<double> rates = {};
  std::vector<bool> skipped = {};
};

inline void expect_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].scalar_type() == want[i].scalar_type() && got[i].equal(want[i]))
        << i << ": " << got[i] << " instead of " << want[i];
  }
}

inline void expect_same_training(OffloadedTraining& got, OffloadedTraining& want) {
  expect_bits(got.state(), want.state());
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.rates, want.rates);
  EXPECT_EQ(got.skipped, want.skipped);
}

}  // namespace accelerator_test
