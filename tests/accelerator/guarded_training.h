// A training in which some updates have gradients that are inf or nan, for the tests of
// AcceleratorOptions::nonfinite.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "accelerator/helpers.h"

namespace accelerator_test {

using accelerant::Nonfinite;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// Graphs that run the step anew cannot tell schedules that it was skipped.
constexpr double kNoSchedule = 1.0;

struct GuardedSetup {
  accelerant::AcceleratorOptions options = on_cpu();
  int64_t updates = 12;
  std::set<int64_t> bad = {3, 4, 8};  // updates with inf or nan in their last micro-step
  bool clips = false;
  bool windows = true;
  double gamma = 0.9;  // of the exponential schedule
};

// fp16 with a scale that stays, so that skipped updates leave no trace.
inline accelerant::AcceleratorOptions guarded(accelerant::Precision precision, Nonfinite nonfinite,
                                              int64_t steps = 1) {
  return {.mixed_precision = precision,
          .gradient_accumulation = {.steps = steps},
          .scaler = {.init_scale = 64, .dynamic = false},
          .nonfinite = nonfinite};
}

// Its batches depend on the number of the update only, so that a training without the bad updates
// is the same in all others.
class GuardedTraining {
 public:
  explicit GuardedTraining(const GuardedSetup& setup) : setup_(setup), accelerator(setup.options) {}

  // All micro-steps of an update.
  void update(int64_t number) {
    const int64_t steps = accelerator.gradient_accumulation_steps();
    for (int64_t micro = 1; micro <= steps; ++micro) {
      const bool is_bad = micro == steps && setup_.bad.contains(number);
      const double factor = !is_bad ? 1.0 : number % 2 == 0 ? kInfinity : kNotANumber;
      const auto [x, y] = batch(number, micro);
      step_(x, y, torch::tensor(factor, x.options()));
    }
    skipped.push_back(optimizer.step_was_skipped());
    rates.push_back(scheduler.get_last_lr()[0]);
  }

  // Steps as CUDA graphs from now on.
  void capture() {
    auto captured =
        accelerator.capture([this](const torch::Tensor& x, const torch::Tensor& y,
                                   const torch::Tensor& factor) { body(x, y, factor); });
    auto shared = std::make_shared<decltype(captured)>(std::move(captured));
    step_ = [shared](const torch::Tensor& x, const torch::Tensor& y, const torch::Tensor& factor) {
      (*shared)(x, y, factor);
    };
    is_captured = [shared] { return shared->is_captured(); };
  }

  void train() {
    for (int64_t number = 0; number < setup_.updates; ++number) update(number);
  }

  // Parameters, and what the optimizer holds.
  std::vector<torch::Tensor> state() {
    optimizer.sync();
    std::vector<torch::Tensor> result = copies(net->parameters());
    for (const torch::Tensor& parameter : net->parameters()) {
      const auto found = adamw.state().find(parameter.unsafeGetTensorImpl());
      if (found == adamw.state().end()) continue;
      const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      result.push_back(moments.exp_avg().clone());
      result.push_back(moments.exp_avg_sq().clone());
      result.push_back(torch::tensor(moments.step()));
    }
    return result;
  }

 private:
  static torch::nn::Sequential seeded() {
    torch::manual_seed(2);
    return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(),
                                 torch::nn::Linear(8, 2));
  }

  std::pair<torch::Tensor, torch::Tensor> batch(int64_t number, int64_t micro) const {
    torch::manual_seed(static_cast<uint64_t>(100 * number + micro));
    const auto x = torch::randn({4, 3});
    const auto y = torch::randn({4, 2});
    return {x.to(accelerator.device()), y.to(accelerator.device())};
  }

  void body(const torch::Tensor& x, const torch::Tensor& y, const torch::Tensor& factor) {
    if (!setup_.windows) return inner(x, y, factor);
    const auto window = accelerator.accumulate(model);
    inner(x, y, factor);
  }

  void inner(const torch::Tensor& x, const torch::Tensor& y, const torch::Tensor& factor) {
    accelerator.backward(torch::mse_loss(model(x), y) * factor);
    if (setup_.clips) accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  GuardedSetup setup_;
  std::function<void(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&)> step_ =
      [this](const torch::Tensor& x, const torch::Tensor& y, const torch::Tensor& factor) {
        body(x, y, factor);
      };

 public:
  accelerant::Accelerator accelerator;
  torch::nn::Sequential net = seeded();
  torch::optim::AdamW adamw{net->parameters(), torch::optim::AdamWOptions(0.05)};
  accelerant::optim::LrScheduler decay =
      accelerant::optim::exponential(adamw, {.gamma = setup_.gamma});
  accelerant::Model<torch::nn::Sequential> model = accelerator.prepare(net);
  accelerant::Optimizer optimizer = accelerator.prepare(adamw);
  accelerant::Scheduler scheduler = accelerator.prepare(decay);
  std::function<bool()> is_captured = [] { return false; };
  std::vector<bool> skipped = {};  // after each update
  std::vector<double> rates = {};
};

inline void expect_equal(const std::vector<torch::Tensor>& got,
                         const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(expected[i])) << i << ": " << got[i] << " instead of " << expected[i];
  }
}

// The same training without the bad updates.
inline std::unique_ptr<GuardedTraining> trained_without_bad_updates(GuardedSetup setup) {
  const std::set<int64_t> left_out = std::move(setup.bad);
  setup.bad = {};
  auto training = std::make_unique<GuardedTraining>(setup);
  for (int64_t number = 0; number < setup.updates; ++number) {
    if (!left_out.contains(number)) training->update(number);
  }
  return training;
}

}  // namespace accelerator_test
