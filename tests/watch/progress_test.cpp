#include "watch/progress.h"

#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using accelerant::dist::Progress;

TEST(ProgressTest, CountsStepsAndCollectives) {
  Progress progress;
  EXPECT_EQ(progress.snapshot().operation, "");
  progress.begin_step();
  {
    const auto gather = progress.collective("gather");
    const auto now = progress.snapshot();
    EXPECT_EQ(now.operation, "gather");
    EXPECT_TRUE(now.collective);
    EXPECT_EQ(now.number, 1);
  }
  { const auto barrier = progress.collective("barrier"); }
  const auto after = progress.snapshot();
  EXPECT_EQ(after.operation, "");
  EXPECT_FALSE(after.collective);
  EXPECT_EQ(after.number, 2);
  EXPECT_EQ(after.step, 1);
  EXPECT_EQ(progress.step(), 1);
  EXPECT_EQ(after.recent, (std::vector<std::string>{"gather", "barrier"}));
  EXPECT_TRUE(after.ordered);
}

TEST(ProgressTest, OtherWaitsHaveNoNumber) {
  Progress progress;
  const auto wait = progress.wait("recv");
  const auto now = progress.snapshot();
  EXPECT_EQ(now.operation, "recv");
  EXPECT_FALSE(now.collective);
  EXPECT_EQ(now.number, 0);
}

TEST(ProgressTest, TheOuterOperationCounts) {
  Progress progress;
  const auto outer = progress.collective("gather");
  { const auto inner = progress.collective("all_reduce"); }
  const auto now = progress.snapshot();
  EXPECT_EQ(now.operation, "gather");
  EXPECT_EQ(now.number, 1);
  EXPECT_TRUE(now.ordered);
}

TEST(ProgressTest, RemembersTheLastCollectives) {
  Progress progress;
  const char* const names[] = {"a", "b", "c"};
  for (int i = 0; i < 40; ++i) {
    const auto operation = progress.collective(names[i % 3]);
  }
  const auto recent = progress.snapshot().recent;
  ASSERT_EQ(recent.size(), 16U);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(recent[i], names[(24 + i) % 3]);
}

TEST(ProgressTest, OneThreadMakesTheCollectives) {
  Progress progress;
  { const auto operation = progress.collective("gather"); }
  std::thread([&] {
    const auto operation = progress.wait("receiving");
    EXPECT_EQ(progress.snapshot().operation, "");  // does not hold up the training
  }).join();
  EXPECT_TRUE(progress.snapshot().ordered);
  std::thread([&] { const auto operation = progress.collective("gather"); }).join();
  EXPECT_FALSE(progress.snapshot().ordered);
}

TEST(ProgressTest, AnotherThreadMayMakeOneForTheTraining) {
  Progress progress;
  { const auto operation = progress.collective("gather"); }
  std::thread([&] {
    const auto operation = progress.collective_for_training("averaging gradients");
    EXPECT_EQ(progress.snapshot().operation, "averaging gradients");
  }).join();
  EXPECT_EQ(progress.snapshot().number, 2);
  EXPECT_TRUE(progress.snapshot().ordered);
}

TEST(ProgressTest, ACollectiveInsideAWaitCounts) {
  Progress progress;
  {
    const auto wait = progress.wait("receiving");
    const auto gather = progress.collective("gather");
    EXPECT_EQ(progress.snapshot().operation, "gather");
  }
  EXPECT_EQ(progress.snapshot().number, 1);
  EXPECT_EQ(progress.snapshot().operation, "");
  EXPECT_TRUE(progress.snapshot().ordered);
}

TEST(ProgressTest, TheWaitOfAnotherThreadEndsUnnoticed) {
  // Nobody knows yet which thread trains.
  Progress progress;
  std::latch waits(1);
  std::latch collects(1);
  std::thread other([&] {
    const auto wait = progress.wait("receiving");
    waits.count_down();
    collects.wait();
  });
  waits.wait();
  const auto gather = progress.collective("gather");
  collects.count_down();
  other.join();
  EXPECT_EQ(progress.snapshot().operation, "gather");
  EXPECT_EQ(progress.snapshot().number, 1);
}

TEST(ProgressTest, OrderCanBeGivenUp) {
  Progress progress;
  progress.lose_order();
  EXPECT_FALSE(progress.snapshot().ordered);
}

TEST(ProgressTest, NumbersAfterAnExceptionAreNotComparable) {
  Progress progress;
  try {
    const auto operation = progress.collective("gather");
    throw std::runtime_error("before it reached the others, perhaps");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(progress.snapshot().ordered);
  EXPECT_EQ(progress.snapshot().operation, "");
}

TEST(ProgressTest, TheMeanIsThatOfTheLastSteps) {
  Progress progress;
  EXPECT_EQ(progress.snapshot().busy_steps, 0);
  progress.note_step(4);
  progress.note_step(2);
  EXPECT_EQ(progress.snapshot().busy, 3);
  for (int i = 0; i < 50; ++i) progress.note_step(7);
  EXPECT_NEAR(progress.snapshot().busy, 7, 1e-9);
  EXPECT_EQ(progress.snapshot().busy_steps, 50);
}

}  // namespace
