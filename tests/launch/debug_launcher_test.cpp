#include "accelerant/launch/debug_launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "accelerant/core/error.h"
#include "support/expect_error.h"

namespace {

using accelerant::debug_launcher;
using accelerant::DebugLauncherOptions;
using accelerant::launch::Stream;

// A rank runs only this test of the program again.
DebugLauncherOptions of_this_test(DebugLauncherOptions options = {}) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  options.arguments = {
      {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()}};
  if (!options.on_output) options.on_output = [](int64_t, Stream, std::string_view) {};
  return options;
}

void say(const char* name) {
  const char* value = std::getenv(name);
  std::fprintf(stderr, "%s=%s\n", name, value == nullptr ? "(unset)" : value);
}

TEST(DebugLauncher, RunsTheFunctionInEveryRank) {
  const auto ranks = debug_launcher(
      [] {
        for (const char* name :
             {"RANK", "WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_USE_CPU", "MINE"}) {
          say(name);
        }
      },
      of_this_test({.num_processes = 3, .environment = {{"MINE", "yes"}}}));
  ASSERT_EQ(ranks.size(), 3U);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank].err, "RANK=" + std::to_string(rank) +
                                   "\nWORLD_SIZE=3\nMASTER_ADDR=127.0.0.1\n"
                                   "ACCELERATE_USE_CPU=true\nMINE=yes\n");
  }
}

TEST(DebugLauncher, HasTwoProcessesByDefaultAndEndsTheRankWithTheFunction) {
  const auto ranks = debug_launcher([] { return 0; }, of_this_test());
  EXPECT_EQ(ranks.size(), 2U);
  for (const auto& rank : ranks) EXPECT_EQ(rank.out.find("[       OK ]"), std::string::npos);
}

TEST(DebugLauncher, RunsTheRightOneOfSeveralCalls) {
  std::string all;
  for (int call = 0; call < 3; ++call) {
    const auto ranks = debug_launcher([&] { std::fprintf(stderr, "call %d", call); },
                                      of_this_test({.num_processes = 1}));
    if (!ranks.empty()) all += ranks[0].err + ";";
  }
  EXPECT_EQ(all, "call 0;call 1;call 2;");
}

TEST(DebugLauncher, AnotherCodeIsAnErrorWithEachRanksOutput) {
  const std::string error = whole_error_of([] {
    debug_launcher(
        [] {
          say("RANK");
          return std::string(std::getenv("RANK")) == "1" ? 7 : 0;
        },
        of_this_test());
  });
  EXPECT_TRUE(contains(error, "rank 1 of 2 failed: exit code 7"));
  EXPECT_TRUE(contains(error, "RANK=1"));
}

TEST(DebugLauncher, AnExceptionReachesTheParent) {
  const std::string error = whole_error_of([] {
    debug_launcher(
        [] {
          if (std::string(std::getenv("RANK")) == "1") throw std::runtime_error("bad luck");
          sleep(1000);
        },
        of_this_test());
  });
  EXPECT_TRUE(contains(error, "rank 1 of 2 failed: exit code 1; 1 other rank was stopped"));
  EXPECT_TRUE(contains(error, "error: bad luck"));
}

TEST(DebugLauncher, ASignalIsAnError) {
  const std::string error = whole_error_of(
      [] { debug_launcher([] { raise(SIGKILL); }, of_this_test({.num_processes = 1})); });
  EXPECT_TRUE(contains(error, "rank 0 of 1 failed: SIGKILL (exit code 137)"));
}

TEST(DebugLauncher, HasADeadline) {
  // On a busy machine it may take longer until the ranks sleep.
  std::string error;
  for (int seconds = 1; seconds < 100 && !contains(error, "err: sleeping"); seconds *= 2) {
    error = whole_error_of([&] {
      debug_launcher(
          [] {
            std::fprintf(stderr, "sleeping\n");
            sleep(1000);
          },
          of_this_test({.timeout = std::chrono::seconds(seconds)}));
    });
  }
  EXPECT_TRUE(contains(error, "did not end within "));
  EXPECT_TRUE(contains(error, "err: sleeping"));
}

TEST(DebugLauncher, NoticesRanksThatTakeAnotherWay) {
  DebugLauncherOptions options = of_this_test({.num_processes = 1});
  options.arguments = {{"--gtest_filter=None.Such"}};
  const std::string error = error_of([&] { debug_launcher([] {}, options); });
  EXPECT_TRUE(contains(error, "rank 0 ended without reaching this call"));
}

TEST(DebugLauncher, RefusesToBeNested) {
  const std::string error = whole_error_of(
      [] { debug_launcher([] { debug_launcher([] {}); }, of_this_test({.num_processes = 1})); });
  EXPECT_TRUE(contains(error, "inside the function of debug_launcher"));
}

}  // namespace
