// Losses and gradients that are not finite.
#include <gtest/gtest.h>

#include "mistakes/loops.h"

namespace mistakes {
namespace {

TEST(Mistakes, ANanSample) {
  for (const Precision precision : {Precision::no, Precision::bf16}) {
    OneWeight t(quiet_cpu(precision));
    const std::string said = said_by([&] {
      train(t, 2);
      t.backward(kNan);
      t.optimizer.step();
      t.optimizer.zero_grad();
      train(t, 2);
    });
    EXPECT_TRUE(contains(said, "The loss is nan in backward 3"));
    EXPECT_TRUE(contains(said, "look at this batch"));
    EXPECT_TRUE(contains(said, ".nonfinite = accelerant::Nonfinite::skip"));
    EXPECT_EQ(count(said, "The loss is nan"), 1);
  }
}

TEST(Mistakes, NanParametersAreNamed) {
  OneWeight t(quiet_cpu());
  {
    const torch::NoGradGuard no_grad;
    t.net->w.fill_(kNan);
  }
  const std::string said = said_by([&] { t.backward(1); });
  EXPECT_TRUE(contains(said, "inf or nan by now: w."));
}

TEST(Mistakes, EveryStepOverflows) {
  OneWeight t(quiet_cpu(Precision::fp16));
  const std::string said = said_by([&] {
    for (int i = 0; i < 40; ++i) {
      auto window = t.accelerator.accumulate(t.model);
      t.backward(kNan);
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_TRUE(contains(said, "The last 20 optimizer steps were all skipped"));
  EXPECT_TRUE(contains(said, "w [1]"));
  EXPECT_EQ(count(said, "all skipped"), 1);
}

TEST(Mistakes, SomeSkippedStepsAreNormal) {
  OneWeight t(quiet_cpu(Precision::fp16));
  const std::string said = said_by([&] {
    for (int i = 0; i < 60; ++i) {
      auto window = t.accelerator.accumulate(t.model);
      t.backward(i % 15 == 0 ? 1e-3 : kNan);
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace mistakes
