// A training whose step can be captured, for the tests of capture().
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/temp_folder.h"

namespace accelerator_test {

struct CaptureSetup {
  accelerant::AcceleratorOptions options = on_cpu();
  int64_t rows = 22;
  int64_t batch_size = 4;
  bool drop_last = false;
  int64_t workers = 0;
  bool windows = true;           // accumulate() around the step
  bool clears_in_front = false;  // zero_grad() before the forward, not after the step
  double dropout = 0.0;
  double gamma = 0.9;                                 // of the exponential schedule
  std::optional<int64_t> overflow_at = std::nullopt;  // the batch with an inf in each epoch
  void (*prepare_graphs)(accelerant::Accelerator&) = nullptr;  // null: graphs of the device
};

inline accelerant::Accelerator accelerator_of(const CaptureSetup& setup) {
  accelerant::Accelerator accelerator(setup.options);
  if (setup.prepare_graphs != nullptr) setup.prepare_graphs(accelerator);
  return accelerator;
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(double dropout)
      : first(register_module("first", torch::nn::Linear(3, 8))),
        norm(register_module(
            "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions(std::vector<int64_t>{8})))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        last(register_module("last", torch::nn::Linear(8, 2))) {}

  torch::Tensor forward(const torch::Tensor& x) { return last(drop(torch::gelu(norm(first(x))))); }

  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
};
TORCH_MODULE(Mlp);

using Pairs = std::tuple<torch::Tensor, torch::Tensor>;

inline accelerant::data::Loader<Pairs> pairs_of(const CaptureSetup& setup) {
  torch::manual_seed(1);
  torch::Tensor x = torch::randn({setup.rows, 3});
  const torch::Tensor y = torch::randn({setup.rows, 2});
  if (setup.overflow_at) x[*setup.overflow_at * setup.batch_size][0] = 1e30;
  return accelerant::data::loader(
      accelerant::data::tensors(x, y),
      {.batch_size = setup.batch_size, .drop_last = setup.drop_last, .workers = setup.workers});
}

// What a program sees of a training.
struct Seen {
  std::vector<torch::Tensor> losses = {};
  std::vector<double> rates = {};
  std::vector<int64_t> micro_steps = {};
  std::vector<bool> skipped = {};
  int64_t replays = 0;
};

class CapturedTraining {
 public:
  using Step = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;

  explicit CapturedTraining(const CaptureSetup& setup)
      : setup_(setup), accelerator(accelerator_of(setup)), net(seeded(setup.dropout)) {
    std::tie(model, optimizer, loader, scheduler) =
        accelerator.prepare(net, adamw, pairs_of(setup), decay);
    torch::manual_seed(3);
  }

  // The whole step, as in a plain loop.
  torch::Tensor body(const torch::Tensor& x, const torch::Tensor& y) {
    if (!setup_.windows) return inner(x, y);
    auto window = accelerator.accumulate(model);
    return inner(x, y);
  }

  auto captured(const accelerant::CaptureOptions& options = {}) {
    return accelerator.capture(
        [this](const torch::Tensor& x, const torch::Tensor& y) { return body(x, y); }, options);
  }

  template <class S>
  void epoch(S& step, Seen& seen) {
    for (auto&& [x, y] : loader) {
      seen.losses.push_back(step(x, y).detach());
      seen.rates.push_back(scheduler.get_last_lr()[0]);
      seen.micro_steps.push_back(accelerator.step());
      seen.skipped.push_back(optimizer.step_was_skipped());
      if constexpr (requires { step.is_captured(); }) seen.replays += step.is_captured();
    }
  }

  Seen plain(int64_t epochs) {
    Seen seen;
    const Step step = [this](const torch::Tensor& x, const torch::Tensor& y) { return body(x, y); };
    for (int64_t i = 0; i < epochs; ++i) epoch(step, seen);
    return seen;
  }

  // The step without its window.
  torch::Tensor inner(const torch::Tensor& x, const torch::Tensor& y) {
    if (setup_.clears_in_front) optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    scheduler.step();
    if (!setup_.clears_in_front) optimizer.zero_grad();
    return loss;
  }

 private:
  static Mlp seeded(double dropout) {
    torch::manual_seed(2);
    return Mlp(dropout);
  }

  CaptureSetup setup_;

 public:
  accelerant::Accelerator accelerator;
  Mlp net;
  torch::optim::AdamW adamw{net->parameters(), torch::optim::AdamWOptions(0.05)};
  accelerant::optim::LrScheduler decay =
      accelerant::optim::exponential(adamw, {.gamma = setup_.gamma});
  accelerant::Model<Mlp> model;
  accelerant::Optimizer optimizer;
  accelerant::data::Loader<Pairs> loader;
  accelerant::Scheduler scheduler;
};

inline void expect_same(const Seen& got, const Seen& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    // Losses of batches that overflow are nan in both.
    EXPECT_TRUE(torch::allclose(got.losses[i], expected.losses[i], 0, 0, /*equal_nan=*/true))
        << "loss " << i << ": " << got.losses[i] << " instead of " << expected.losses[i];
  }
  EXPECT_EQ(got.rates, expected.rates);
  EXPECT_EQ(got.micro_steps, expected.micro_steps);
  EXPECT_EQ(got.skipped, expected.skipped);
}

inline void expect_same_parameters(const CapturedTraining& got, const CapturedTraining& expected) {
  const auto left = got.net->named_parameters();
  const auto right = expected.net->named_parameters();
  for (const auto& item : left) {
    EXPECT_TRUE(item.value().equal(right[item.key()])) << item.key();
  }
}

// Trains both ways and expects equal results. Returns what was seen with capture().
inline Seen expect_same_training(const CaptureSetup& setup, int64_t epochs,
                                 const accelerant::CaptureOptions& options = {}) {
  CapturedTraining plain(setup);
  const Seen expected = plain.plain(epochs);
  CapturedTraining training(setup);
  Seen got;
  {
    auto step = training.captured(options);
    for (int64_t i = 0; i < epochs; ++i) training.epoch(step, got);
    EXPECT_LE(step.graphs(), options.max_graphs);
  }
  expect_same(got, expected);
  expect_same_parameters(training, plain);
  return got;
}

// One batch, over and over.
struct SameBatch {
  explicit SameBatch(CapturedTraining& training)
      : x(torch::ones({2, 3}, training.accelerator.device())),
        y(torch::ones({2, 2}, training.accelerator.device())) {}

  torch::Tensor x;
  torch::Tensor y;
};

// The changes: learning rates and other options, eager steps, dropped gradients, modes and window
// sizes.
inline void expect_changes_between_replays_to_count(const CaptureSetup& setup) {
  const auto train = [&](bool captured) {
    auto training = std::make_unique<CapturedTraining>(setup);
    auto step = training->captured();
    const SameBatch batch(*training);
    const auto run = [&](int times) {
      for (int i = 0; i < times; ++i) {
        captured ? step(batch.x, batch.y) : training->body(batch.x, batch.y);
      }
    };
    run(9);
    static_cast<torch::optim::AdamWOptions&>(training->adamw.param_groups()[0].options()).lr(0.3);
    run(3);
    training->body(batch.x, batch.y);
    run(4);
    training->adamw.zero_grad();
    run(2);
    training->model.eval();
    run(2);
    training->model.train();
    run(2);
    training->net->drop->eval();
    run(3);
    training->net->drop->train();
    auto& group = training->adamw.param_groups()[0];
    group.set_options(std::make_unique<torch::optim::AdamWOptions>(0.2));
    run(4);
    static_cast<torch::optim::AdamWOptions&>(group.options()).amsgrad(true);
    training->body(batch.x, batch.y);
    run(4);
    training->accelerator.set_gradient_accumulation_steps(3);
    run(12);
    EXPECT_EQ(step.is_captured(), captured) << step.why_not();
    return training;
  };
  const auto plain = train(false);
  const auto captured = train(true);
  expect_same_parameters(*captured, *plain);
  EXPECT_EQ(captured->scheduler.get_last_lr(), plain->scheduler.get_last_lr());
  EXPECT_EQ(captured->accelerator.step(), plain->accelerator.step());
}

// It waits as long as that graph binds parameters to the program's own stream.
inline void expect_to_wait_for_a_graph_of_autograd(const CaptureSetup& setup) {
  CapturedTraining training(setup);
  auto step = training.captured();
  const SameBatch batch(training);
  const GatheredLog log;
  torch::Tensor held = training.model(batch.x);
  for (int i = 0; i < 20; ++i) {
    step(batch.x, batch.y);
    EXPECT_FALSE(step.is_captured());
  }
  EXPECT_TRUE(contains(log.text(), "detach()"));
  EXPECT_EQ(step.why_not(), "");
  held.reset();
  for (int i = 0; i < 3; ++i) step(batch.x, batch.y);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
}

// Batches with an even number of rows take another path through the model, whose parameters have
// had no gradients before.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : trunk(register_module("trunk", torch::nn::Linear(3, 8))),
        odd(register_module("odd", torch::nn::Linear(8, 2))),
        even(register_module("even", torch::nn::Linear(8, 2))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return (x.size(0) % 2 == 1 ? odd : even)(torch::tanh(trunk(x)));
  }

  torch::nn::Linear trunk;
  torch::nn::Linear odd;
  torch::nn::Linear even;
};
TORCH_MODULE(TwoHeads);

inline void expect_parameters_that_come_later_to_count(const CaptureSetup& setup) {
  const auto train = [&](bool is_captured) {
    accelerant::Accelerator accelerator = accelerator_of(setup);
    torch::manual_seed(2);
    TwoHeads net;
    torch::optim::AdamW adamw(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const auto body = [&](const torch::Tensor& x) {
      accelerator.backward(model(x).pow(2).mean());
      accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
      optimizer.zero_grad();
    };
    auto step = accelerator.capture(body);
    for (const int64_t rows : {1, 1, 1, 1, 1, 1, 2, 1, 2, 2, 1, 2, 1, 1, 2}) {
      const auto x = torch::ones({rows, 3}, accelerator.device());
      is_captured ? step(x) : body(x);
    }
    EXPECT_EQ(step.is_captured(), is_captured) << step.why_not();
    optimizer.sync();
    std::vector<torch::Tensor> result = net->parameters();
    for (const torch::Tensor& parameter : net->parameters()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *adamw.state().at(parameter.unsafeGetTensorImpl()));
      result.push_back(torch::tensor(state.step()));
    }
    return result;
  };
  const auto got = train(true);
  const auto expected = train(false);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

inline void expect_to_save_and_load_between_replays(const CaptureSetup& setup) {
  const TempFolder folder;
  CapturedTraining training(setup);
  auto step = training.captured();
  const SameBatch batch(training);
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) step(batch.x, batch.y);
    return training.net->last->weight.detach().clone();
  };
  run(9);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  const std::string path = training.accelerator.save_state(folder.path("state"));
  const torch::Tensor expected = run(7);
  const int64_t updates = 9 / training.accelerator.gradient_accumulation_steps();
  EXPECT_EQ(training.accelerator.load_state(path).updates, updates);
  EXPECT_TRUE(run(7).equal(expected));
  EXPECT_TRUE(step.is_captured()) << step.why_not();

  CapturedTraining other(setup);
  other.accelerator.load_state(path);
  for (int i = 0; i < 7; ++i) other.body(batch.x, batch.y);
  EXPECT_TRUE(other.net->last->weight.equal(expected));
}

}  // namespace accelerator_test
