// Signals to the processes of a training run: all stop after the same update.

#include "dist/preemption.h"

#include <accelerant/core/error.h>
#include <accelerant/core/log.h>
#include <accelerant/dist/collectives.h>
#include <accelerant/dist/process_control.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "support/world.h"

namespace {

using accelerant::Preempted;
using accelerant::dist::gather_object;
using accelerant::dist::Preemption;
using accelerant::dist::ProcessGroupOptions;
using accelerant::dist::wait_for_everyone;
using accelerant::dist::World;
using std::chrono::milliseconds;
using std::chrono::seconds;

ProcessGroupOptions quick_options(seconds timeout = seconds(60)) {
  return {.timeout = timeout, .monitor = {.interval = milliseconds(50)}};
}

void expect_same_update(const World& world, const Preemption& preemption) {
  const auto all = gather_object(world, {preemption.updates(), preemption.signal()});
  for (const auto& one : all) EXPECT_EQ(one, all[0]);
}

// An update with an exchange in it, like the exchange of gradients.
bool update_together(const World& world, Preemption& preemption) {
  wait_for_everyone(world);
  return preemption.at_boundary();
}

TEST(Preemption, OneProcessStopsAtItsNextUpdate) {
  const TempFolder folder;
  const std::string mark = folder.path("saving");
  setenv("ACCELERANT_SAVING_FILE", mark.c_str(), 1);
  const auto world = join_world();
  Preemption preemption(*world);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(preemption.at_boundary());
  EXPECT_EQ(preemption.signal(), 0);
  raise(SIGTERM);
  EXPECT_NE(access(mark.c_str(), F_OK), 0);
  EXPECT_TRUE(preemption.at_boundary());
  EXPECT_EQ(access(mark.c_str(), F_OK), 0);
  EXPECT_EQ(preemption.signal(), SIGTERM);
  EXPECT_EQ(preemption.updates(), 4);
  unsetenv("ACCELERANT_SAVING_FILE");
}

RANK_TEST(Preemption, ASignalToOneRankStopsAll, 3) {
  const auto world = join_world(quick_options());
  Preemption preemption(*world);
  while (!update_together(*world, preemption)) {
    if (rank() == 1 && preemption.updates() == 5) raise(SIGUSR1);
  }
  EXPECT_EQ(preemption.signal(), SIGUSR1);
  EXPECT_GT(preemption.updates(), 5);
  expect_same_update(*world, preemption);
}

// Runs several trainings one after the other: the second training of a program can be stopped too.
RANK_TEST(Preemption, SignalsAtRandomUpdatesStopAllAtTheSame, 4) {
  const auto world = join_world(quick_options());
  nlohmann::json seed = random_seed();
  broadcast_object(*world, seed);
  SCOPED_TRACE("seed " + seed.dump());
  std::mt19937 random(seed.get<uint32_t>());
  for (int round = 0; round < 10; ++round) {
    const bool together = random() % 2 == 0;
    const size_t sure = random() % 4;
    std::vector<int64_t> asked_at(4);
    for (size_t i = 0; i < 4; ++i) {
      const bool asked = i == sure || random() % 3 == 0;
      const auto update = static_cast<int64_t>(1 + random() % (together ? 50 : 100000));
      asked_at[i] = asked ? update : -1;
    }
    Preemption preemption(*world);
    const auto mine = static_cast<size_t>(rank());
    do {
      if (preemption.updates() + 1 == asked_at[mine]) raise(rank() % 2 == 0 ? SIGTERM : SIGUSR1);
    } while (!(together ? update_together(*world, preemption) : preemption.at_boundary()));
    expect_same_update(*world, preemption);
  }
}

[[noreturn]] void train_until_preempted() {
  // GoogleTest catches what its own thread throws.
  std::thread([] {
    const auto world = join_world(quick_options());
    Preemption preemption(*world);
    while (!update_together(*world, preemption)) {
      if (rank() == 1 && preemption.updates() == 3) raise(SIGUSR1);
    }
    wait_for_everyone(*world, "saved");
    throw Preempted(preemption.signal(), "runs/last");
  }).join();
  std::abort();
}

TEST(Preemption, UncaughtItEndsAllRanksWithTheExitCode) {
  if (rank_test::is_rank()) train_until_preempted();
  const auto result = rank_test::run({.num_ranks = 3});
  for (const auto& rank : result.ranks) {
    EXPECT_EQ(rank.exit_code, 75) << result.report;
    EXPECT_FALSE(rank.error);
    EXPECT_TRUE(contains(rank.err, "SIGUSR1 received: state saved in runs/last"));
    EXPECT_FALSE(rank.failed() || rank.stopped);
  }
  EXPECT_FALSE(result.succeeded());
  EXPECT_TRUE(result.report.starts_with("stopped on request")) << result.report;
}

// The signal comes while the training shuts down at its end.
RANK_TEST(Preemption, NobodySavesWhenATrainingHasEnded, 2) {
  const auto world = join_world(quick_options());
  std::atomic<bool> warned = false;
  accelerant::set_log_handler([&](accelerant::LogLevel, std::string_view text) {
    if (text.find("SIGTERM asks rank 0") != std::string_view::npos) warned = true;
  });
  {
    Preemption preemption(*world);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(update_together(*world, preemption));
    if (rank() == 0) {
      wait_for_everyone(*world, "the end of the other");
      raise(SIGTERM);
      while (!warned) EXPECT_FALSE(preemption.at_boundary());
      for (int i = 0; i < 3; ++i) EXPECT_FALSE(preemption.at_boundary());
    }
  }
  if (rank() == 1) wait_for_everyone(*world, "the end of the other");
  wait_for_everyone(*world);
  accelerant::set_log_handler({});
}

TEST(Preemption, ARankThatDoesNotAnswerIsNamed) {
  if (rank_test::is_rank()) {
    std::thread([] {
      const auto world = join_world(quick_options(seconds(2)));
      Preemption preemption(*world);
      if (rank() == 2) raise(SIGUSR1);
      while (!preemption.at_boundary()) std::this_thread::yield();
    }).join();
    return;
  }
  const auto result = rank_test::run(
      {.num_ranks = 3, .environment = {{"ACCELERANT_FAILPOINT", "preemption.answer:hang/rank=1"}}});
  int naming = 0;
  for (const auto& rank : result.ranks) {
    ASSERT_TRUE(rank.error) << result.report;
    EXPECT_EQ(rank.exit_code, 1);
    const std::string problem = "The processes could not agree on when to save their state: ";
    EXPECT_TRUE(rank.error->message.starts_with(problem)) << rank.error->message;
    const std::string why = rank.error->message.substr(problem.size());
    if (why.starts_with("rank 1 did not answer within 2 s")) {
      ++naming;
    } else {  // it heard of another's end before its own timeout, or it is rank 1, which cannot ask
      EXPECT_TRUE(contains(why, "given up") || contains(why, "failed") ||
                  why.starts_with("the store does not answer"))
          << why;
    }
  }
  EXPECT_GT(naming, 0);
}

TEST(Preemption, TheFailureOfARankEndsTheWait) {
  if (rank_test::is_rank()) {
    std::thread([] {
      const auto world = join_world(quick_options());
      Preemption preemption(*world);
      wait_for_everyone(*world);
      if (rank() == 1) throw std::runtime_error("out of luck");
      raise(SIGUSR1);
      while (!preemption.at_boundary()) std::this_thread::yield();
    }).join();
    return;
  }
  const auto result = rank_test::run(
      {.num_ranks = 2, .environment = {{"ACCELERANT_FAILPOINT", "preemption.answer:hang/rank=1"}}});
  EXPECT_EQ(result.ranks[0].exit_code, 1) << result.report;
  ASSERT_TRUE(result.ranks[0].error) << result.report;
  EXPECT_TRUE(contains(result.ranks[0].error->message, "rank 1 has failed: out of luck"));
  EXPECT_TRUE(result.report.starts_with("rank 1 of 2 failed: exit code 1")) << result.report;
}

}  // namespace
