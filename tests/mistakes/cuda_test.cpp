// Mistakes that only a GPU can show: they are noticed late, because nothing waits for the device.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "mistakes/said.h"

namespace mistakes {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerator_test::OneWeight;

constexpr int64_t kLate = 2 * 64 + 8;  // steps after which a nan has been noticed

class MistakesOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  static torch::Tensor on_gpu(double value) { return torch::full({1}, value, torch::kCUDA); }
};

// libtorch's clipping writes past the version counter, so only the values tell.
TEST_F(MistakesOnCuda, ClippingByTorchUnderFp16) {
  OneWeight t({.mixed_precision = Precision::fp16});
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) {
      t.accelerator.backward(t.model(on_gpu(1)).sum());
      torch::nn::utils::clip_grad_norm_(t.net->parameters(), 1.0);
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(count(said, "accelerator.clip_grad_norm_(model, 1.0)"), 1);
}

TEST_F(MistakesOnCuda, ANanSample) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    OneWeight t({.mixed_precision = precision});
    const std::string said = said_by([&] {
      for (int64_t i = 0; i < kLate; ++i) {
        t.accelerator.backward(t.model(on_gpu(i == 5 ? kNan : 1e-3)).sum());
        t.optimizer.step();
        t.optimizer.zero_grad();
        if (i % 16 == 0) torch::cuda::synchronize();
      }
    });
    EXPECT_TRUE(contains(said, "The loss is nan"));
    EXPECT_TRUE(contains(said, "inf or nan by now: w."));
    EXPECT_EQ(count(said, "The loss is nan"), 1);
  }
}

TEST_F(MistakesOnCuda, ANanSampleInACapturedStep) {
  OneWeight t({});
  auto step = t.accelerator.capture([&](const torch::Tensor& x) {
    const torch::Tensor loss = t.model(x).sum();
    t.accelerator.backward(loss);
    t.optimizer.step();
    t.optimizer.zero_grad();
    return loss;
  });
  const auto run = [&](int64_t calls, double value) {
    for (int64_t i = 0; i < calls; ++i) {
      step(on_gpu(value));
      torch::cuda::synchronize();
    }
  };
  EXPECT_EQ(said_by([&] { run(kLate, 1e-3); }), "");
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  const std::string said = said_by([&] {
    run(1, kNan);
    run(kLate, 1e-3);
  });
  EXPECT_TRUE(contains(said, "The loss is nan"));
}

TEST_F(MistakesOnCuda, EveryStepOverflows) {
  OneWeight t({.mixed_precision = Precision::fp16});
  const std::string said = said_by([&] {
    for (int i = 0; i < 60; ++i) {
      t.accelerator.backward(t.model(on_gpu(kNan)).sum());
      t.optimizer.step();
      t.optimizer.zero_grad();
      torch::cuda::synchronize();
    }
  });
  EXPECT_TRUE(contains(said, "optimizer steps were all skipped"));
}

}  // namespace
}  // namespace mistakes
