// What the gradients of a window are: means over micro-steps or over items.
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

TEST(Accumulation, LossesOfItemsAreDividedByTheItemsOfTheWindow) {
  OneWeight t(on_cpu(Precision::no, 2), 0.0);
  for (const auto& x : {torch::tensor({1.0F}), torch::tensor({2.0F, 3.0F, 6.0F})}) {
    const auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.model(x).sum(), x.numel());
    t.optimizer.step();
  }
  EXPECT_FLOAT_EQ(t.gradient(), 3.0F);  // the mean of 1, 2, 3, 6
}

TEST(Accumulation, AWindowWithoutAnyItemsGivesFiniteGradients) {
  OneWeight t(on_cpu(Precision::no, 2));
  for (int i = 0; i < 2; ++i) {
    const auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.model(scalar(0)).sum(), int64_t{0});
    t.optimizer.step();
  }
  EXPECT_EQ(t.weight(), 1.0F);
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
  // Means of rows 0-3, 4-7 and 8-9. Accelerate divides the last sum by 4, too.
  const std::vector<float> expected = {1.5F, 5.5F, 8.5F};
  for (const bool clip : {false, true}) {
    EXPECT_EQ(gradients_at_updates(counting_loader(10, {.batch_size = 1}), 4, clip), expected);
    EXPECT_EQ(
        gradients_at_updates(
            accelerant::data::loader(CountingStream{.length = 10}, {.batch_size = 1}), 4, clip),
        expected);
  }
}

}  // namespace
}  // namespace accelerator_test
