#include "accelerant/nn/layers.h"

#include <accelerant/amp/autocast.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>

#include "nn/fused_cross_entropy.h"
#include "support/on_device.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

namespace F = accelerant::nn::functional;
using Options = torch::nn::functional::CrossEntropyFuncOptions;
using Loss = std::function<at::Tensor(const at::Tensor& logits)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CrossEntropy : public OnDevice {
 protected:
  at::Tensor random_targets(int64_t rows, int64_t classes) const {
    return torch::randint(classes, {rows}, options(at::kLong));
  }
};
ON_EVERY_DEVICE(CrossEntropy);

int64_t reduction_of(const Options& options) {
  return torch::enumtype::reduction_get_enum(options.reduction());
}

// torch's own loss, in float32.
at::Tensor loss_of_torch(const at::Tensor& logits, const at::Tensor& targets,
                         const Options& options = {}) {
  return at::cross_entropy_loss(logits.to(at::kFloat), targets, options.weight(),
                                reduction_of(options), options.ignore_index(),
                                options.label_smoothing());
}

std::vector<Options> some_options() {
  std::vector<Options> all;
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    all.push_back(Options().label_smoothing(smoothing));
    all.push_back(Options().label_smoothing(smoothing).reduction(torch::kSum));
    all.push_back(Options().label_smoothing(smoothing).reduction(torch::kNone));
  }
  return all;
}

double unit_of(at::ScalarType type) {
  return type == at::kHalf ? 0x1p-10 : type == at::kBFloat16 ? 0x1p-7 : 0x1p-23;
}

void expect_close(const at::Tensor& ours, const at::Tensor& theirs, double units) {
  ASSERT_EQ(ours.sizes(), theirs.sizes());
  ASSERT_EQ(ours.scalar_type(), theirs.scalar_type());
  const double tolerance = units * unit_of(ours.scalar_type());
  const at::Tensor exact = theirs.to(at::kDouble);
  const at::Tensor finite = exact.where(exact.isfinite(), 0.0).abs();
  const double largest = finite.numel() > 0 ? finite.max().item<double>() : 0.0;
  // Sums of numbers near 1 may be nearly 0, and the smallest halves are that far apart.
  const double nothing =
      ours.scalar_type() == at::kHalf ? 0x1p-23 : 0x1p-22 * std::max(largest, 1.0);
  EXPECT_TRUE(at::allclose(ours.to(at::kDouble), exact, tolerance, nothing, /*equal_nan=*/true))
      << "they differ by up to " << (ours.to(at::kDouble) - exact).abs().nan_to_num().max()
      << ", the largest is " << largest;
}

// Compares the losses of both, and the gradients for random upstream gradients.
void expect_same(const at::Tensor& logits, const Loss& our_loss, const Loss& their_loss) {
  const at::Tensor ours = logits.detach().requires_grad_();
  const at::Tensor theirs = logits.detach().requires_grad_();
  const at::Tensor our_result = our_loss(ours);
  const at::Tensor their_result = their_loss(theirs);
  const at::Tensor upstream = torch::rand_like(their_result) + 0.5;
  our_result.backward(upstream);
  their_result.backward(upstream);
  EXPECT_EQ(our_result.scalar_type(), at::kFloat);
  expect_close(our_result, their_result, 64);
  expect_close(ours.grad(), theirs.grad(), logits.scalar_type() == at::kFloat ? 64 : 1);
}

void expect_same(const at::Tensor& logits, const at::Tensor& targets, const Options& options = {}) {
  expect_same(
      logits, [&](const at::Tensor& ours) { return F::cross_entropy(ours, targets, options); },
      [&](const at::Tensor& theirs) { return loss_of_torch(theirs, targets, options); });
}

TEST_P(CrossEntropy, IsTorchsForAllSizesTypesAndOptions) {
  const std::vector<std::pair<int64_t, int64_t>> sizes{
      {1, 1}, {3, 2}, {5, 7}, {64, 65}, {9, 1000}, {8, 1024}, {7, 1025}, {4, 4099}, {3, 50257}};
  for (const auto& [rows, classes] : sizes) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const at::Tensor logits = (5 * torch::randn({rows, classes}, options())).to(type);
      const at::Tensor targets = random_targets(rows, classes);
      for (const Options& each : some_options()) {
        SCOPED_TRACE(c10::str(rows, " x ", classes, " ", type, ", reduction ", reduction_of(each),
                              ", smoothing ", each.label_smoothing()));
        expect_same(logits, targets, each);
      }
    }
  }
}

TEST_P(CrossEntropy, RowsThatAreIgnoredHaveNoLossAndNoGradient) {
  for (const int64_t classes : {13, 3000}) {
    const at::Tensor logits = torch::randn({40, classes}, options());
    at::Tensor targets = random_targets(40, classes);
    targets.slice(0, 0, 40, 3).fill_(-100);
    for (Options each : some_options()) {
      expect_same(logits, targets, each);
      expect_same(logits, random_targets(40, 4), each.ignore_index(2));
    }
    targets.fill_(-100);
    const at::Tensor ignored = logits.clone().requires_grad_();
    const at::Tensor loss = F::cross_entropy(ignored, targets);
    EXPECT_TRUE(loss.isnan().item<bool>());
    loss.backward();
    EXPECT_TRUE(ignored.grad().eq(0).all().item<bool>());
  }
}

TEST_P(CrossEntropy, LogitsMayLieInAnyWay) {
  for (const auto type : {at::kFloat, at::kHalf}) {
    const at::Tensor block = torch::randn({12, 5000}, options()).to(type);
    const at::Tensor targets = random_targets(12, 1500);
    expect_same(block.narrow(1, 0, 1500), targets);                       // rows with gaps
    expect_same(block.narrow(1, 3, 1500), targets);                       // with any start
    expect_same(block.view({5000, 12}).t().narrow(1, 0, 1500), targets);  // columns
    expect_same(block.narrow(1, 0, 1).expand({12, 1500}), targets);       // one number per row
    expect_same(block.narrow(0, 0, 1).narrow(1, 0, 1500).expand({12, 1500}), targets);  // one row
    expect_same(block.narrow(1, 0, 1500), torch::stack({targets, targets}, 1).select(1, 1));
  }
}

TEST_P(CrossEntropy, TheLossesOfRowsMayBeSummed) {  // their gradients are one number, expanded
  for (const auto type : {at::kFloat, at::kHalf}) {
    const at::Tensor logits = torch::randn({6, 40}, options()).to(type);
    const at::Tensor targets = random_targets(6, 40);
    const Options rows = Options().reduction(torch::kNone);
    expect_same(
        logits, [&](const at::Tensor& x) { return F::cross_entropy(x, targets, rows).sum(); },
        [&](const at::Tensor& x) { return loss_of_torch(x, targets, rows).sum(); });
  }
}

TEST_P(CrossEntropy, InfinitiesAndNansSpreadAsInTorch) {
  for (const int64_t classes : {9, 2000}) {
    at::Tensor logits = torch::randn({7, classes}, options());
    at::Tensor targets = random_targets(7, classes);
    logits[0].slice(0, 1).fill_(-kInfinity);  // all but one
    logits[1].fill_(-kInfinity);
    logits[2][classes / 2] = kInfinity;
    logits[3][1] = std::nan("");
    logits[4][2] = -kInfinity;
    targets[0] = 0;
    targets[4] = 2;
    logits[5].fill_(1e30);
    for (const double smoothing : {0.0, 0.25}) {
      expect_same(logits, targets, Options().reduction(torch::kNone).label_smoothing(smoothing));
    }
  }
}

TEST_P(CrossEntropy, IgnoredRowsHaveNoGradientWhateverIsInThem) {
  for (const int64_t classes : {9, 2000}) {
    const at::Tensor logits = torch::full({2, classes}, std::nan(""), options()).requires_grad_();
    if (!accelerant::nn::can_fuse_cross_entropy(logits, random_targets(2, classes), {})) {
      GTEST_SKIP() << "torch's own makes them nan";
    }
    F::cross_entropy(logits, full({2}, -100, at::kLong), Options().reduction(torch::kSum))
        .backward();
    EXPECT_TRUE(logits.grad().eq(0).all().item<bool>());
  }
}

TEST_P(CrossEntropy, GradientsOfGradientsAreThoseOfTorch) {
  at::Tensor targets = random_targets(6, 10);
  targets[3] = -100;
  for (const Options& each : some_options()) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const at::Tensor logits = torch::randn({6, 10}, options()).to(type);
      const auto second = [&](const Loss& loss) {
        const at::Tensor input = logits.clone().requires_grad_();
        const auto first = torch::autograd::grad({loss(input).sum()}, {input}, {}, std::nullopt,
                                                 /*create_graph=*/true);
        EXPECT_EQ(first[0].scalar_type(), type);
        first[0].to(at::kFloat).square().sum().backward();
        return input.grad();
      };
      const at::Tensor ours =
          second([&](const at::Tensor& x) { return F::cross_entropy(x, targets, each); });
      const at::Tensor theirs =
          second([&](const at::Tensor& x) { return loss_of_torch(x, targets, each); });
      // These are differences of rounded numbers, so they are only as exact as the largest of them.
      ASSERT_EQ(ours.scalar_type(), type);
      const double tolerance = (type == at::kFloat ? 64 : 4) * unit_of(type);
      EXPECT_LE((ours - theirs).to(at::kDouble).abs().max().item<double>(),
                tolerance * theirs.to(at::kDouble).abs().max().item<double>());
    }
  }
}

TEST_P(CrossEntropy, TheGradientByOperationsIsThatOfTorch) {
  at::Tensor targets = random_targets(6, 10);
  targets[2] = -100;
  for (const Options& each : some_options()) {
    const at::Tensor logits = torch::randn({6, 10}, options()).requires_grad_();
    const at::Tensor loss = loss_of_torch(logits, targets, each);
    const at::Tensor upstream = torch::rand_like(loss);
    loss.backward(upstream);
    const bool is_mean = reduction_of(each) == at::Reduction::Mean;
    expect_close(accelerant::nn::cross_entropy_gradient(logits.detach(), targets,
                                                        {.label_smoothing = each.label_smoothing()},
                                                        is_mean ? upstream / 5 : upstream),
                 logits.grad(), 64);
  }
}

TEST_P(CrossEntropy, WhatHasNoKernelsGoesThroughTorch) {
  const at::Tensor logits = torch::randn({4, 6, 3}, options());
  const at::Tensor targets = torch::randint(6, {4, 3}, options(at::kLong));
  expect_same(logits, targets);
  expect_same(logits.to(at::kBFloat16), targets);
  const at::Tensor weights = torch::rand({6}, options());
  expect_same(torch::randn({5, 6}, options()), random_targets(5, 6), Options().weight(weights));
  EXPECT_FALSE(F::cross_entropy(torch::randn({5, 6}, options(at::kHalf)), random_targets(5, 6),
                                Options().weight(weights.to(at::kHalf)))
                   .isnan()
                   .item<bool>());
  expect_same(torch::randn({5, 6}, options()), torch::rand({5, 6}, options()));  // probabilities
  expect_same(torch::randn({6}, options()), random_targets(1, 6)[0]);
  expect_same(torch::randn({5, 6}, options()), random_targets(5, 6).to(at::kByte));
  const at::Tensor doubles = torch::randn({5, 6}, options(at::kDouble));
  const at::Tensor some = random_targets(5, 6);
  EXPECT_TRUE(F::cross_entropy(doubles, some).equal(at::cross_entropy_loss(doubles, some)));
  EXPECT_TRUE(
      F::cross_entropy(torch::empty({0, 6}, options()), random_targets(0, 6)).isnan().item<bool>());
}

TEST_P(CrossEntropy, TheLossOf16BitsIsFloat32InsideAndOutsideOfAutocast) {
  const at::Tensor logits = torch::randn({5, 6}, options(at::kBFloat16));
  const at::Tensor targets = random_targets(5, 6);
  const at::Tensor outside = F::cross_entropy(logits, targets);
  const accelerant::AutocastGuard autocast({device().type(), at::kBFloat16});
  const at::Tensor inside = F::cross_entropy(logits, targets);
  EXPECT_EQ(outside.scalar_type(), at::kFloat);
  EXPECT_TRUE(outside.equal(inside));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(outside.equal(F::cross_entropy(logits, targets)));
}

TEST_P(CrossEntropy, TheSameLogitsGiveTheSameBits) {
  const at::Tensor logits = torch::randn({300, 5003}, options()).to(at::kHalf);
  const at::Tensor targets = random_targets(300, 5003);
  const auto run = [&] {
    const at::Tensor input = logits.detach().requires_grad_();
    const at::Tensor loss = F::cross_entropy(input, targets);
    loss.backward();
    return std::pair(loss.detach(), input.grad());
  };
  const auto [loss, gradient] = run();
  const auto [again, gradient_again] = run();
  EXPECT_TRUE(loss.equal(again));
  EXPECT_TRUE(gradient.equal(gradient_again));
}

TEST_P(CrossEntropy, BadArgumentsAreRefusedByTorch) {
  const at::Tensor logits = torch::randn({5, 6}, options());
  EXPECT_THROW(F::cross_entropy(logits, random_targets(4, 6)), c10::Error);
  EXPECT_THROW(F::cross_entropy(logits, random_targets(5, 6), Options().label_smoothing(2)),
               c10::Error);
  EXPECT_THROW(F::cross_entropy(logits, random_targets(5, 6).to(at::kInt)), c10::Error);
}

#if defined(ACCELERANT_WITH_CUDA)

class CrossEntropyOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CrossEntropyOnCuda, WorksOnTheCurrentStream) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const at::Tensor targets = torch::randint(3000, {64}, at::device(at::kCUDA).dtype(at::kLong));
  for (int i = 0; i < 20; ++i) {
    // After a long kernel: work on another stream would not see its result.
    const at::Tensor big = torch::randn({2048, 2048}, at::kCUDA);
    const at::Tensor zero = big.mm(big).sum() * 0;
    expect_same((torch::randn({64, 3000}, at::kCUDA) + zero).to(at::kHalf), targets);
  }
}

TEST_F(CrossEntropyOnCuda, IsTheSameInAGraph) {
  for (const int64_t classes : {65, 3000}) {
    const at::Tensor logits = torch::zeros({64, classes}, at::kCUDA).to(at::kHalf);
    const at::Tensor targets = torch::zeros({64}, at::device(at::kCUDA).dtype(at::kLong));
    const auto run = [&] {
      const at::Tensor input = logits.detach().requires_grad_();
      const at::Tensor loss = F::cross_entropy(input, targets);
      return std::pair(loss.detach(), torch::autograd::grad({loss}, {input})[0]);
    };
    at::cuda::CUDAGraph graph;
    std::pair<at::Tensor, at::Tensor> captured;
    torch::cuda::synchronize();  // the inputs were made on another stream
    {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
      run();  // warm up
      graph.capture_begin();
      captured = run();
      graph.capture_end();
    }
    for (int i = 0; i < 3; ++i) {
      logits.normal_();
      targets.random_(classes);
      if (i == 2) targets.narrow(0, 0, 10).fill_(-100);
      graph.replay();
      const auto [loss, gradient] = run();
      EXPECT_TRUE(captured.first.equal(loss));
      EXPECT_TRUE(captured.second.equal(gradient));
    }
  }
}

// In a separate process, because the device is unusable afterwards.
TEST(CrossEntropyDeathTest, ATargetThatIsNoClassEndsTheWorkOnTheDevice) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto train = [](int64_t target) {
    const at::Tensor targets = torch::full({4}, target, at::device(at::kCUDA).dtype(at::kLong));
    try {
      F::cross_entropy(torch::zeros({4, 10}, at::kCUDA), targets).item<float>();
    } catch (const std::exception& error) {  // from torch, or from the next kernel launch
      fputs(error.what(), stderr);
      _exit(7);
    }
    _exit(0);
  };
  EXPECT_EXIT(train(9), testing::ExitedWithCode(0), "");
  for (const int64_t target : {-1, 10}) {
    EXPECT_EXIT(train(target), testing::ExitedWithCode(7),
                "every target must be a class or ignore_index(.|\n)*device-side assert");
  }
}

#endif

}  // namespace
