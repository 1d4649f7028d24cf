// Windows of accumulated gradients as a training loop sees them.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

torch::nn::Sequential small_network() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

torch::Tensor summed_loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(
      output, target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-1));
}

// The gradients of one backward over all rows.
std::vector<torch::Tensor> gradients_of_one_batch(const torch::Tensor& x, const torch::Tensor& y) {
  auto net = small_network();
  const auto count = y.ne(-1).sum().item<double>();
  summed_loss(net->forward(x), y).div(count).backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

// Rows, classes and the sizes of the micro-batches they are cut into.
struct Rows {
  torch::Tensor x;
  torch::Tensor y;
};

Rows random_rows(int64_t count, uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({count, 4}), torch::randint(3, {count}, torch::kLong)};
}

TEST(Accumulation, MicroBatchesOfOneSizeEqualOneBigBatch) {
  for (const int64_t steps : {1, 2, 3, 5}) {
    const Rows rows = random_rows(4 * steps, 7);
    auto net = small_network();
    Accelerator accelerator(on_cpu(Precision::no, steps));
    const auto model = accelerator.prepare(net);
    for (int64_t i = 0; i < steps; ++i) {
      const auto window = accelerator.accumulate(model);
      const auto output = model(rows.x.narrow(0, 4 * i, 4));
      accelerator.backward(
          torch::nn::functional::cross_entropy(output, rows.y.narrow(0, 4 * i, 4)));
      EXPECT_EQ(window.sync_gradients(), i + 1 == steps);
    }
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : model.parameters()) gradients.push_back(parameter.grad());
    EXPECT_TRUE(all_close(gradients, gradients_of_one_batch(rows.x, rows.y), 1e-6)) << steps;
  }
}

TEST(Accumulation, ItemsOfUnevenMicroBatchesAreWeighedExactly) {
  for (const auto precision : {Precision::no, Precision::bf16}) {
    for (const bool device_count : {false, true}) {
      Rows rows = random_rows(17, 11);
      rows.y.index_fill_(0, torch::tensor({0, 1, 5, 6, 7, 16}), -1);  // not counted
      auto net = small_network();
      torch::optim::SGD sgd(net->parameters(), 0.0);
      Accelerator accelerator(on_cpu(precision, 4));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      int64_t start = 0;
      for (const int64_t size : {2, 9, 5, 1}) {
        const auto window = accelerator.accumulate(model);
        const auto y = rows.y.narrow(0, start, size);
        const auto loss = summed_loss(model(rows.x.narrow(0, start, size)), y);
        if (device_count) {
          accelerator.backward(loss, y.ne(-1).sum());
        } else {
          accelerator.backward(loss, y.ne(-1).sum().item<int64_t>());
        }
        start += size;
        accelerator.unscale_gradients();
      }
      std::vector<torch::Tensor> gradients;
      for (const auto& parameter : model.parameters()) gradients.push_back(parameter.grad());
      EXPECT_TRUE(all_close(gradients, gradients_of_one_batch(rows.x, rows.y),
                            precision == Precision::no ? 1e-6 : 2e-2));
    }
  }
}

TEST(Accumulation, AWindowWithoutAnyItemsGivesFiniteGradients) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 2; ++i) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(0)).sum(), int64_t{0});
    optimizer.step();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F);
}

TEST(Accumulation, BothFormsOfBackwardInOneWindowAreRefused) {
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  const auto model = accelerator.prepare(net);
  const auto window = accelerator.accumulate(model);
  accelerator.backward(model(scalar(1)).sum());
  EXPECT_TRUE(contains(error_of([&] { accelerator.backward(model(scalar(1)).sum(), 3); }),
                       "one form of backward() in a window"));
}

TEST(Accumulation, ANegativeNumberOfItemsIsRefused) {
  Scale net;
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  EXPECT_TRUE(contains(error_of([&] { accelerator.backward(model(scalar(1)).sum(), -1); }),
                       "expected 0 or more, got -1"));
  EXPECT_TRUE(
      contains(error_of([&] { accelerator.backward(model(scalar(1)).sum(), torch::ones({2})); }),
               "a tensor with one element"));
}

// The length of a stream is not known ahead, so its short window is corrected at the end.
struct CountingStream {
  int64_t length = 0;
  int64_t next_row = 0;
  std::optional<torch::Tensor> next() {
    if (next_row == length) return std::nullopt;
    return torch::full({1}, static_cast<float>(next_row++));
  }
  void reset(int64_t) { next_row = 0; }
};

template <class Batches>
std::vector<float> gradients_at_updates(const Batches& batches, int64_t steps, bool clip) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, steps));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  std::vector<float> gradients;
  for (auto&& batch : loader) {
    torch::Tensor x;
    accelerant::visit_tensors(batch, [&](const torch::Tensor& tensor) { x = tensor; });
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    if (clip) accelerator.clip_grad_norm_(model, 1e9);
    if (optimizer.step().kind() == StepResult::Kind::submitted) {
      gradients.push_back(net->w.grad().item<float>());
    }
    optimizer.zero_grad();
  }
  return gradients;
}

TEST(Accumulation, TheShortLastWindowIsTheMeanOfWhatItHolds) {
  const std::vector<float> expected = {1.5F, 5.5F, 8.5F};  // rows 0-3, 4-7, 8-9
  for (const bool clip : {false, true}) {
    EXPECT_EQ(gradients_at_updates(counting_loader(10, {.batch_size = 1}), 4, clip), expected);
    EXPECT_EQ(
        gradients_at_updates(
            accelerant::data::loader(CountingStream{.length = 10}, {.batch_size = 1}), 4, clip),
        expected);
  }
}

TEST(Accumulation, WithoutSynchronisingAtTheEndTheWindowGoesOnInTheNextEpoch) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  auto options = on_cpu(Precision::no, 4);
  options.gradient_accumulation.sync_with_dataloader = false;
  Accelerator accelerator(options);
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(6));
  std::vector<float> gradients;
  for ([[maybe_unused]] auto epoch : accelerator.epochs(2)) {
    for (auto&& [x] : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).mean());
      if (optimizer.step().kind() == StepResult::Kind::submitted) {
        gradients.push_back(net->w.grad().item<float>());
      }
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(gradients, (std::vector<float>{1.5F, 2.5F, 3.5F}));  // 0-3; 4, 5, 0, 1; 2-5
  EXPECT_EQ(accelerator.updates_per_epoch(loader), 1);
}

TEST(Accumulation, AnEarlyBreakKeepsTheWindowOpen) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 3));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(10));
  const auto train_on = [&](const torch::Tensor& x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    const auto result = optimizer.step();
    const float gradient = net->w.grad().item<float>();
    optimizer.zero_grad();
    return result.kind() == StepResult::Kind::submitted ? std::optional(gradient) : std::nullopt;
  };
  int count = 0;
  for (auto&& [x] : loader) {
    train_on(x);
    if (++count == 5) break;  // rows 3 and 4 are in the window now
  }
  EXPECT_EQ(accelerator.step(), 2);
  for (auto&& [x] : loader) {
    EXPECT_FLOAT_EQ(train_on(x).value(), 7.0F / 3);  // with row 0
    break;
  }
  EXPECT_EQ(accelerator.step(), 0);
}

TEST(Accumulation, AnExceptionTakesTheMicroStepBack) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto micro_step = [&](bool fails) {
    const auto window = accelerator.accumulate(model);
    if (fails) throw std::runtime_error("bad batch");
    accelerator.backward(model(scalar(4)).mean());
    return optimizer.step().kind();
  };
  EXPECT_EQ(micro_step(false), StepResult::Kind::accumulating);
  EXPECT_THROW(micro_step(true), std::runtime_error);  // would have completed the window
  EXPECT_EQ(accelerator.step(), 1);
  EXPECT_FALSE(accelerator.sync_gradients());
  EXPECT_EQ(micro_step(false), StepResult::Kind::submitted);
  EXPECT_EQ(net->w.grad().item<float>(), 4.0F);
}

TEST(Accumulation, AnExceptionAfterTheStepDoesNotOpenTheWindowAgain) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  try {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    optimizer.step();
    throw std::runtime_error("no disk space for the log");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(accelerator.step(), 0);
  EXPECT_TRUE(accelerator.sync_gradients());
}

TEST(Accumulation, TheScopeMayCloseBeforeTheStep) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    Accelerator accelerator(on_cpu(precision, 2));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 6; ++i) {
      {
        const auto window = accelerator.accumulate(model);
        accelerator.backward(model(scalar(1)).mean());
      }
      const auto result = optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(result.kind(),
                i % 2 == 1 ? StepResult::Kind::submitted : StepResult::Kind::accumulating);
    }
    EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
    accelerator.backward(model(scalar(1)).mean());  // the scaler's pending update
    EXPECT_EQ(accelerator.scaler().status().updates, precision == Precision::fp16 ? 3 : 0);
  }
}

TEST(Accumulation, ZeroGradMayStandBeforeTheForward) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 3));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 6; ++i) {
    const auto window = accelerator.accumulate(model);
    optimizer.zero_grad();
    accelerator.backward(model(scalar(i)).mean());
    if (optimizer.step().kind() == StepResult::Kind::submitted) {
      EXPECT_FLOAT_EQ(net->w.grad().item<float>(), i == 2 ? 1.0F : 4.0F);
    }
  }
}

TEST(Accumulation, GradientsMayBeDroppedWithoutAStep) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto window = accelerator.accumulate(model);
  accelerator.backward(model(scalar(1)).mean());
  optimizer.zero_grad();
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::nothing_to_do);
}

TEST(Accumulation, ChangingTheNumberOfStepsCountsFromTheNextMicroStep) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto micro_step = [&](double x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(x)).mean());
    return optimizer.step().kind();
  };
  micro_step(2);
  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(micro_step(6), StepResult::Kind::submitted);
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 4.0F);
  EXPECT_TRUE(contains(error_of([&] { accelerator.set_gradient_accumulation_steps(0); }),
                       "expected at least 1, got 0"));
}

TEST(Accumulation, ScopesDoNotNest) {
  Scale net;
  Scale other;
  Accelerator accelerator(on_cpu());
  auto [model, other_model] = accelerator.prepare(net, other);
  const auto window = accelerator.accumulate(model);
  EXPECT_TRUE(contains(error_of([&, &m = model] { const auto inner = accelerator.accumulate(m); }),
                       "accumulate() is already open"));
  EXPECT_TRUE(
      contains(error_of([&, &m = other_model] { const auto inner = accelerator.accumulate(m); }),
               "accumulate() is already open"));
}

TEST(Accumulation, AnOptimizerWaitsForOneWindowAtATime) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(1)).mean());
  }
  EXPECT_TRUE(contains(error_of([&] { const auto window = accelerator.accumulate(); }),
                       "in the middle of a window over other models"));
  accelerator.drop_gradients();
  EXPECT_NO_THROW(static_cast<void>(accelerator.accumulate()));
}

// An exception between backward and step.
TEST(Accumulation, AFailedFirstMicroStepLeavesNoGradients) {
  for (const bool items : {false, true}) {
    for (const int64_t steps : {1, 2}) {
      Scale net;
      torch::optim::SGD sgd(net->parameters(), 0.0);
      Accelerator accelerator(on_cpu(Precision::no, steps));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto micro_step = [&, &m = model, &o = optimizer](double x, bool fails) {
        const auto window = accelerator.accumulate(m);
        if (items) {
          accelerator.backward(7 * m(scalar(x)).sum(), fails ? 3 : 7);
        } else {
          accelerator.backward(m(scalar(x)).mean());
        }
        if (fails) throw std::runtime_error("after the backward");
        o.step();
      };
      EXPECT_THROW(micro_step(100, true), std::runtime_error);
      EXPECT_FALSE(net->w.grad().defined());
      for (int64_t i = 0; i < steps; ++i) micro_step(4, false);
      EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 4.0F);
    }
  }
}

TEST(Accumulation, AHalfCompleteWindowCanBeGivenUp) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 0.0);
    auto options = on_cpu(precision, 3);
    options.scaler = {.init_scale = 128};
    Accelerator accelerator(options);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto micro_step = [&, &m = model, &o = optimizer](double x) {
      const auto window = accelerator.accumulate(m);
      accelerator.backward(m(scalar(x)).mean());
      accelerator.unscale_gradients();
      o.step();
    };
    micro_step(100);
    micro_step(100);
    accelerator.drop_gradients();
    EXPECT_EQ(accelerator.step(), 0);
    EXPECT_FALSE(net->w.grad().defined());
    for (int i = 0; i < 3; ++i) micro_step(4);
    EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 4.0F);
  }
}

TEST(Accumulation, BackwardOutsideAWindowWarnsOnce) {
  std::vector<std::string> messages;
  const auto before = accelerant::set_log_handler(
      [&](accelerant::LogLevel, std::string_view text) { messages.emplace_back(text); });
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  const auto model = accelerator.prepare(net);
  accelerator.backward(model(scalar(3)).mean());
  accelerator.backward(model(scalar(3)).mean());
  accelerant::set_log_handler(before);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_TRUE(contains(messages.front(), "outside of accumulate()"));
  EXPECT_EQ(net->w.grad().item<float>(), 6.0F);  // each counts in full
}

TEST(Accumulation, SyncGradientsCanBeSetByHand) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  EXPECT_TRUE(accelerator.sync_gradients());
  accelerator.set_sync_gradients(false);
  accelerator.backward(model(scalar(1)).mean());
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::accumulating);
  optimizer.zero_grad();
  EXPECT_TRUE(net->w.grad().defined());
  accelerator.set_sync_gradients(true);
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
}

TEST(Accumulation, AParameterOfTwoOptimizersIsCorrectedOnce) {
  Scale net;
  torch::optim::SGD first(net->parameters(), 0.0);
  torch::optim::SGD second(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, a, b] = accelerator.prepare(net, first, second);
  const auto loader =
      accelerator.prepare(accelerant::data::loader(CountingStream{.length = 2}, {.batch_size = 1}));
  for (auto&& x : loader) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    accelerator.unscale_gradients();
    a.step();
    b.step();
  }
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 0.5F);
}

TEST(Accumulation, TwoAcceleratorsDoNotDisturbEachOther) {
  Scale net_a;
  Scale net_b;
  Accelerator a(on_cpu(Precision::no, 2));
  Accelerator b(on_cpu(Precision::fp16, 3));
  const auto model_a = a.prepare(net_a);
  const auto model_b = b.prepare(net_b);
  const auto window_a = a.accumulate(model_a);
  const auto window_b = b.accumulate(model_b);
  EXPECT_EQ(a.gradient_accumulation_steps(), 2);
  EXPECT_EQ(b.gradient_accumulation_steps(), 3);
  EXPECT_FALSE(a.scaler().is_enabled());
  EXPECT_TRUE(b.scaler().is_enabled());
  EXPECT_TRUE(contains(error_of([&] { const auto scope = a.accumulate(model_b); }),
                       "prepared by another Accelerator"));
}

}  // namespace
}  // namespace accelerator_test
