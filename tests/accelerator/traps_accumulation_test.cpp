// Behaviours that re-implementations of Accelerate tend to get wrong, as far as they concern one
// process. The numbers are those of the list this library was designed against; gaps are rows about
// several processes or about checkpoints.
// Here: accumulation.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

// Runs loops over loaders of the given lengths and records at which batches gradients synchronise.
std::string sync_pattern(Accelerator& accelerator, const std::vector<int64_t>& lengths) {
  Scale net;
  const auto model = accelerator.prepare(net);
  std::string pattern;
  for (const int64_t length : lengths) {
    const auto loader = accelerator.prepare(counting_loader(length));
    for ([[maybe_unused]] auto&& batch : loader) {
      const auto window = accelerator.accumulate(model);
      pattern += accelerator.sync_gradients() ? 'S' : '.';
    }
    pattern += ' ';
  }
  return pattern;
}

TEST(Traps, Trap01SyncsAtEveryKthCallAndAtTheLastBatchWhichStartsAFreshWindow) {
  Accelerator accelerator(on_cpu(Precision::no, 3));
  EXPECT_EQ(sync_pattern(accelerator, {7, 5, 3, 1}), "..S..SS ..S.S ..S S ");
}

TEST(Traps, Trap02TheLastBatchIsKnownWhileItIsProcessed) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(5, {.batch_size = 2}));
  std::vector<bool> last;
  for ([[maybe_unused]] auto&& batch : loader) last.push_back(loader.is_last_batch());
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST(Traps, Trap03TheLookAheadIsNotPartOfThePosition) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(7, {.batch_size = 2}));
  std::vector<int64_t> positions;
  for ([[maybe_unused]] auto&& batch : loader) positions.push_back(loader.position());
  EXPECT_EQ(positions, (std::vector<int64_t>{2, 4, 6, 7}));
}

TEST(Traps, Trap04AShortWindowIsNotUnderweighted) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(6));
  float gradient = 0;
  for (auto&& [x] : loader) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    optimizer.step();
    gradient = net->w.grad().item<float>();
    optimizer.zero_grad();
  }
  EXPECT_EQ(gradient, 4.5F);  // the mean of rows 4 and 5; Accelerate gives 9 / 4
}

TEST(Traps, Trap05TwoBlocksForOneBatchHaveWindowsOfTheirOwn) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  torch::optim::SGD sgd_b(b->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [ma, mb, oa, ob, loader] = accelerator.prepare(a, b, sgd_a, sgd_b, counting_loader(4));
  std::string pattern;
  const auto train = [&](const auto& model, const auto& optimizer, const torch::Tensor& x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    pattern += optimizer.step().kind() == StepResult::Kind::submitted ? 'S' : '.';
    optimizer.zero_grad();
  };
  for (auto&& [x] : loader) {
    train(ma, oa, x);
    train(mb, ob, x);
  }
  EXPECT_EQ(pattern, "..SS..SS");
}

TEST(Traps, Trap06StepZeroGradAndScheduleDoNothingInTheMiddleOfAWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto decay = accelerant::optim::step_decay(sgd, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(2)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::accumulating);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F);
  EXPECT_EQ(net->w.grad().item<float>(), 1.0F);
  EXPECT_EQ(decay.last_step(), 0);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(decay.last_step(), 1);
}

TEST(Traps, Trap09SyncEachBatchDoesNotChangeTheCadence) {
  auto options = on_cpu(Precision::no, 3);
  options.gradient_accumulation.sync_each_batch = true;
  Accelerator accelerator(options);
  EXPECT_EQ(sync_pattern(accelerator, {7}), "..S..SS ");
}

TEST(Traps, Trap10AnEvaluationInsideTheLoopDoesNotDisturbIt) {
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, loader, evaluation] =
      accelerator.prepare(net, counting_loader(5), counting_loader(3));
  std::string pattern;
  int batch_number = 0;
  for ([[maybe_unused]] auto&& batch : loader) {
    for ([[maybe_unused]] auto&& inner : evaluation) {
      if (batch_number == 2) break;  // left early
    }
    try {
      for ([[maybe_unused]] auto&& inner : evaluation) throw std::runtime_error("in evaluation");
    } catch (const std::runtime_error&) {
    }
    const auto window = accelerator.accumulate(model);
    pattern += window.sync_gradients() ? 'S' : '.';
    ++batch_number;
  }
  EXPECT_EQ(pattern, ".S.SS");
}

TEST(Traps, Trap11TokenLossesAreDividedByTheTokensOfTheWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const auto& x : {torch::tensor({1.0F}), torch::tensor({2.0F, 3.0F, 6.0F})}) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).sum(), x.numel());
    optimizer.step();
  }
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 3.0F);  // the mean of 1, 2, 3, 6
}

}  // namespace
}  // namespace accelerator_test
