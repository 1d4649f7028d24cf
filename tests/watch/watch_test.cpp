#include "watch/watch.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/texts.h"
#include "support/expect_error.h"
#include "support/random_seed.h"

namespace {

using accelerant::ranks_text;
using accelerant::dist::Heartbeat;
using accelerant::dist::heartbeat_of;
using accelerant::dist::MonitorOptions;
using accelerant::dist::ProcessState;
using accelerant::dist::Watch;

using Texts = std::vector<std::string>;

// Processes whose actions the test scripts, as one of them sees them. The test also sets the time.
class World {
 public:
  explicit World(int64_t size, int64_t rank = 0, const MonitorOptions& options = {})
      : rank_(rank), watch_(rank, size, options) {
    for (int64_t i = 0; i < size; ++i) {
      processes_.push_back({});
      began_.push_back(now_);
    }
  }

  // The rank is in an operation or, if that is empty, in the user's code.
  void waits(int64_t rank, const std::string& operation) {
    enters(rank, "");
    process(rank).progress.operation = operation;
  }
  void enters(int64_t rank, const std::string& operation) {
    auto& progress = processes_[at(rank)].progress;
    progress.operation = operation;
    progress.collective = !operation.empty();
    if (progress.collective) {
      ++progress.number;
      progress.recent.push_back(operation);
      if (progress.recent.size() > 16) progress.recent.erase(progress.recent.begin());
    }
    began_[at(rank)] = now_;
  }
  void steps(int64_t rank) { ++processes_[at(rank)].progress.step, began_[at(rank)] = now_; }
  Heartbeat& process(int64_t rank) { return processes_[at(rank)]; }
  void stops(int64_t rank) { stopped_.push_back(rank); }
  void continues(int64_t rank) { std::erase(stopped_, rank); }

  // Once a second, every process writes and the watching process reads.
  Texts passes(int seconds) {
    Texts said;
    for (int second = 0; second < seconds; ++second) {
      now_ += 1;
      std::vector<std::optional<Heartbeat>> read;
      for (size_t i = 0; i < processes_.size(); ++i) {
        const bool stopped =
            std::find(stopped_.begin(), stopped_.end(), static_cast<int64_t>(i)) != stopped_.end();
        if (!stopped) {
          ++processes_[i].beat;
          processes_[i].progress.since = now_ - began_[i];
        }
        read.push_back(heartbeat_of(to_json(processes_[i])));
      }
      watch_.observe(now_, read);
      for (const auto& text : watch_.warnings(now_)) said.push_back(text);
    }
    return said;
  }

  std::optional<std::string> mismatch() const { return watch_.mismatch(now_); }
  std::optional<std::string> lost(bool is_excused = false) const {
    return watch_.lost(now_, [&](const Heartbeat&) { return is_excused; });
  }
  void begins_again() { watch_.begin_again(now_); }
  std::string who_is_late() const { return watch_.who_is_late(now_); }
  const Watch& watch() const { return watch_; }
  double now() const { return now_; }

 private:
  static size_t at(int64_t rank) { return static_cast<size_t>(rank); }

  int64_t rank_;
  Watch watch_;
  double now_ = 100;
  std::vector<Heartbeat> processes_;
  std::vector<double> began_;
  std::vector<int64_t> stopped_;
};

TEST(WatchTest, RanksAreNamedShortly) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(ranks_text({0, 1, 2, 5}), "ranks 0 to 2 and 5");
  EXPECT_EQ(ranks_text({0, 2, 4, 5, 6, 7}), "ranks 0, 2 and 4 to 7");
}

TEST(WatchTest, HeartbeatsSurviveTheStore) {
  Heartbeat heartbeat{.beat = 7, .state = ProcessState::failed, .message = "bad \xff byte"};
  heartbeat.progress.step = 3;
  heartbeat.progress.recent = {"a", "b"};
  const auto read = heartbeat_of(to_json(heartbeat));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->beat, 7);
  EXPECT_EQ(read->state, ProcessState::failed);
  EXPECT_EQ(read->progress.recent, heartbeat.progress.recent);
  for (const char* bad : {"", "{}", "[1]", "{\"beat\": \"x\"}"}) EXPECT_FALSE(heartbeat_of(bad));
}

// --- Hung processes -------------------------------------------------------------------------------

TEST(WatchTest, NamesTheProcessThatTheOthersWaitFor) {
  World world(4);
  for (int64_t rank = 0; rank < 4; ++rank)
    for (int step = 0; step < 812; ++step) world.steps(rank);
  for (int64_t rank = 0; rank < 3; ++rank) world.enters(rank, "gather");
  EXPECT_EQ(world.passes(59), Texts{});
  EXPECT_EQ(world.passes(1), Texts{"rank 3 is at step 812, in user code, for 60 s; ranks 0 to 2 "
                                   "wait in gather (exchange 1)"});
  EXPECT_EQ(world.passes(59), Texts{});
  const auto again = world.passes(1);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(contains(again[0], "for 120 s"));
  EXPECT_EQ(world.passes(60), Texts{});

  world.enters(3, "gather");
  for (int64_t rank = 0; rank < 4; ++rank) world.enters(rank, "");
  EXPECT_EQ(world.passes(1), Texts{"rank 3 goes on, after 181 s"});
  EXPECT_EQ(world.passes(1000), Texts{});
}

TEST(WatchTest, AProcessThatMovesIsNotHung) {
  World world(2);
  world.enters(0, "gather");
  for (int i = 0; i < 20; ++i) {
    world.steps(1);
    EXPECT_EQ(world.passes(30), Texts{});
  }
}

TEST(WatchTest, LongComputationsAreNotHung) {
  World world(2);
  EXPECT_EQ(world.passes(10'000), Texts{});  // both in user code
}

TEST(WatchTest, ACollectiveInWhichAllHangIsNamed) {
  World world(2);
  for (int64_t rank = 0; rank < 2; ++rank) world.enters(rank, "backward");
  EXPECT_EQ(world.passes(60),
            Texts{"ranks 0 and 1 made no progress in backward (exchange 1) for 60 s, "
                  "though all have come so far"});
  for (int64_t rank = 0; rank < 2; ++rank) world.enters(rank, "");
  EXPECT_EQ(world.passes(1), Texts{"backward (exchange 1) goes on, after 61 s"});
}

TEST(WatchTest, InOtherWaitsThoseThatDoNotWaitAreNamed) {
  World world(3);
  world.waits(1, "receiving");
  world.waits(2, "receiving");
  EXPECT_EQ(world.passes(60),
            Texts{"rank 0 is at step 0, in user code, for 60 s; ranks 1 and 2 wait in receiving"});
}

TEST(WatchTest, NamesAProcessThatDoesNotAnswer) {
  World world(3);
  world.passes(1);
  world.stops(2);
  world.enters(0, "gather");
  world.enters(1, "gather");
  EXPECT_EQ(world.passes(59), Texts{});
  const auto said = world.passes(1);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(contains(
      said[0],
      "rank 2 has not answered for 60 s; when last heard, it was at step 0, in user code"));
  EXPECT_EQ(world.passes(59), Texts{});
  EXPECT_EQ(world.passes(1).size(), 1U);
  world.continues(2);
  world.steps(2);
  EXPECT_EQ(world.passes(1), Texts{"rank 2 answers again, after 121 s"});
}

TEST(WatchTest, AnotherProcessSpeaksWhereTheFirstIsStopped) {
  World seen_by_1(3, 1);
  World seen_by_2(3, 2);
  for (World* world : {&seen_by_1, &seen_by_2}) {
    world->passes(1);
    world->stops(0);
    world->enters(1, "gather");
    world->enters(2, "gather");
  }
  const auto said = seen_by_1.passes(61);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(contains(said[0], "rank 0 has not answered"));
  EXPECT_EQ(seen_by_2.passes(61), Texts{});
}

TEST(WatchTest, WhoIsLateIsNamedOnce) {
  World world(4);
  for (int64_t rank = 0; rank < 4; ++rank) world.steps(rank);
  world.enters(0, "gather");
  world.enters(3, "gather");
  world.passes(1);
  EXPECT_EQ(world.who_is_late(), "ranks 1 and 2 are behind, at step 1, in user code");
  world.stops(2);
  world.passes(20);
  EXPECT_EQ(world.who_is_late(),
            "rank 2 has not answered for 20 s (last heard at step 1, in user code)");
  world.continues(2);
  world.enters(1, "gather");
  world.enters(2, "gather");
  world.passes(1);
  EXPECT_EQ(world.who_is_late(),
            "nobody is behind: ranks 1 to 3 are at step 1, in gather (exchange 1)");
}

TEST(WatchTest, ProcessesThatHaveLeftAreNotSilent) {
  World world(2);
  world.passes(1);
  world.process(1).state = ProcessState::left;
  world.passes(1);
  world.stops(1);
  EXPECT_EQ(world.passes(500), Texts{});
}

// --- Lost processes -------------------------------------------------------------------------------

World world_with_a_stopped_process(const MonitorOptions& options = {}) {
  World world(3, 0, options);
  for (int64_t rank = 0; rank < 3; ++rank) world.steps(rank);
  world.passes(1);
  world.stops(2);
  world.enters(0, "gather");
  world.enters(1, "gather");
  return world;
}

TEST(WatchTest, AProcessThatIsSilentForAMinuteIsLost) {
  World world = world_with_a_stopped_process();
  world.passes(59);
  EXPECT_FALSE(world.lost());
  world.passes(1);
  ASSERT_TRUE(world.lost());
  EXPECT_EQ(
      *world.lost(),
      "has waited in gather (exchange 1) for 60 s, and rank 2 has not answered for 60 s (last "
      "heard at step 1, in user code). Its process is stopped or cut off, or its machine is "
      "gone; to wait longer, raise process_group.monitor.lost_after");
  EXPECT_FALSE(world.lost(/*is_excused=*/true));
  world.continues(2);
  world.passes(1);
  EXPECT_FALSE(world.lost());
}

TEST(WatchTest, LostAfterIsAnOption) {
  World never = world_with_a_stopped_process({.lost_after = std::chrono::seconds(0)});
  never.passes(10'000);
  EXPECT_FALSE(never.lost());
  World soon = world_with_a_stopped_process({.lost_after = std::chrono::seconds(20)});
  soon.passes(19);
  EXPECT_FALSE(soon.lost());
  soon.passes(1);
  EXPECT_TRUE(soon.lost());
  // Not before three heartbeats are missing.
  World three = world_with_a_stopped_process(
      {.interval = std::chrono::seconds(30), .lost_after = std::chrono::seconds(20)});
  three.passes(89);
  EXPECT_FALSE(three.lost());
  three.passes(1);
  EXPECT_TRUE(three.lost());
}

TEST(WatchTest, AProcessThatIsOnlySlowIsNotLost) {
  World world(2);
  world.enters(0, "gather");
  world.passes(10'000);
  EXPECT_FALSE(world.lost());
}

TEST(WatchTest, NobodyIsLostToAProcessThatDoesNotWait) {
  World world = world_with_a_stopped_process();
  world.enters(0, "");
  world.passes(1000);
  EXPECT_FALSE(world.lost());
  world.enters(0, "gather");
  world.passes(59);
  EXPECT_FALSE(world.lost());
  world.passes(1);
  EXPECT_TRUE(world.lost());
}

// A laptop, or a whole job, that was suspended.
TEST(WatchTest, TheTimeInWhichThisProcessWasStoppedDoesNotCount) {
  World world = world_with_a_stopped_process();
  world.passes(500);
  world.begins_again();
  EXPECT_FALSE(world.lost());
  world.passes(59);
  EXPECT_FALSE(world.lost());
  world.passes(1);
  EXPECT_TRUE(world.lost());
}

// --- Exchanges that cannot meet -------------------------------------------------------------------

TEST(WatchTest, DifferentCollectivesWithTheSameNumberCannotMeet) {
  World world(3);
  world.enters(0, "gather");
  world.enters(1, "gather");
  world.enters(2, "barrier");
  world.passes(1);
  EXPECT_FALSE(world.mismatch());
  world.passes(1);
  ASSERT_TRUE(world.mismatch());
  EXPECT_TRUE(contains(
      *world.mismatch(),
      "is blocked in gather (exchange 1), which can never complete: exchange 1 of rank "
      "2 is barrier (step 0); rank 1 is at step 0, in gather (exchange 1). All processes must"));
}

// The message says each thing once, however many processes have noticed it already.
TEST(WatchTest, WhatOthersSayOfAMismatchIsNotRepeated) {
  World world(5);
  for (const int64_t rank : {0, 1, 2}) world.enters(rank, "gather");
  for (const int64_t rank : {3, 4}) world.enters(rank, "barrier");
  world.passes(3);
  const std::string first = *world.mismatch();
  EXPECT_TRUE(contains(first,
                       "exchange 1 of ranks 3 and 4 is barrier (step 0); ranks 1 and 2 are at "
                       "step 0, in gather (exchange 1)"));
  world.process(1).state = world.process(3).state = ProcessState::failed;
  world.process(1).message = world.process(3).message = first;
  world.passes(1);
  const std::string second = *world.mismatch();
  EXPECT_EQ(second.find("is blocked in"), second.rfind("is blocked in")) << second;
  EXPECT_EQ(second.find("All processes must"), second.rfind("All processes must")) << second;
}

TEST(WatchTest, AFailureIsTheReasonOnce) {
  World world(2);
  world.enters(0, "gather");
  world.process(1).state = ProcessState::failed;
  world.process(1).message =
      "is blocked in x (exchange 1), which can never complete: y. All processes must make the same "
      "exchanges in the same order: look for a call inside an if that only some processes enter, "
      "or for loops of different length";
  world.passes(3);
  ASSERT_TRUE(world.mismatch());
  EXPECT_TRUE(contains(*world.mismatch(),
                       ": rank 1 has failed: is blocked in x (exchange 1), which can never "
                       "complete: y. All processes must make"));
  EXPECT_EQ(world.mismatch()->find("All processes"), world.mismatch()->rfind("All processes"));
}

TEST(WatchTest, AlsoWhenTheOtherHasGoneOn) {
  // A broadcast does not wait for its receivers.
  World world(2, 1);
  world.enters(0, "broadcast");
  world.enters(0, "");
  world.enters(0, "backward");
  world.enters(1, "backward");
  world.passes(3);
  ASSERT_TRUE(world.mismatch());
  EXPECT_TRUE(
      contains(*world.mismatch(),
               "exchange 1 of rank 0 is broadcast, now at step 0, in backward (exchange 2). All"));
}

TEST(WatchTest, AProcessThatHasFinishedIsNotWaitedFor) {
  World world(2);
  world.enters(0, "gather");
  world.process(1).state = ProcessState::left;
  world.passes(3);
  ASSERT_TRUE(world.mismatch());
  EXPECT_TRUE(contains(*world.mismatch(), "rank 1 has left the run after 0 exchanges"));
}

TEST(WatchTest, AProcessThatHasTakenPartMayFinishFirst) {
  World world(2);
  world.enters(0, "gather");
  world.enters(1, "gather");
  world.enters(1, "");
  world.process(1).state = ProcessState::left;
  world.passes(100);
  EXPECT_FALSE(world.mismatch());
}

TEST(WatchTest, UncertainNumbersAreNotCompared) {
  for (const int64_t unordered : {0, 1}) {
    World world(2);
    world.enters(0, "gather");
    world.enters(1, "barrier");
    world.process(unordered).progress.ordered = false;
    world.passes(100);
    EXPECT_FALSE(world.mismatch());
  }
}

// All processes make the same random calls, each at random times, and may run ahead of each other
// as with collectives that do not wait. Their heartbeats may be arbitrarily old. None of this is a
// mismatch.
TEST(WatchTest, SlowProcessesAreNeverAMismatch) {
  const unsigned seed = random_seed();
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  for (int round = 0; round < 40; ++round) {
    constexpr int size = 3;
    const char* const names[] = {"gather", "barrier", "backward"};
    std::vector<std::string> calls;
    for (int i = 0; i < 30; ++i) calls.push_back(names[pick(0, 2)]);
    World world(size, pick(0, size - 1));
    std::vector<size_t> made(size, 0);
    for (int turn = 0; turn < 200; ++turn) {
      const int rank = pick(0, size - 1);
      const bool inside = !world.process(rank).progress.operation.empty();
      if (inside) {
        world.enters(rank, "");
      } else if (made[static_cast<size_t>(rank)] < calls.size()) {
        world.enters(rank, calls[made[static_cast<size_t>(rank)]++]);
      } else {
        world.process(rank).state = ProcessState::left;
      }
      pick(0, 3) == 0 ? world.stops(pick(0, size - 1)) : world.continues(pick(0, size - 1));
      world.passes(pick(0, 5));
      ASSERT_FALSE(world.mismatch()) << *world.mismatch() << ", seed " << seed;
    }
  }
}

// --- Slow processes -------------------------------------------------------------------------------

TEST(WatchTest, NamesASlowProcess) {
  World world(3);
  const auto train = [&](int steps) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      for (int i = 0; i < steps; ++i) world.steps(rank);
      auto& progress = world.process(rank).progress;
      progress.busy = rank == 2 ? 0.0414 : 0.023;
      progress.busy_steps = std::min<int64_t>(progress.step, 50);
    }
    return world.passes(1);
  };
  EXPECT_EQ(train(19), Texts{});
  EXPECT_EQ(train(1), Texts{"rank 2 takes 1.8 times the median step (41 ms against 23 ms)"});
  EXPECT_EQ(train(19), Texts{});
  EXPECT_EQ(train(1).size(), 1U);  // at step 40, then at 80
  EXPECT_EQ(train(39), Texts{});
  EXPECT_EQ(train(1).size(), 1U);
}

TEST(WatchTest, SmallDifferencesAreNoise) {
  for (const double slow : {0.034, 0.0005}) {  // less than 1.5 times, less than a millisecond
    World world(2);
    for (int64_t rank = 0; rank < 2; ++rank) {
      world.process(rank).progress.busy = rank == 1 ? slow : slow < 0.001 ? 0.0001 : 0.023;
      world.process(rank).progress.busy_steps = 50;
    }
    EXPECT_EQ(world.passes(10), Texts{});
  }
}

TEST(WatchTest, OfTwoProcessesOneCanBeSlow) {
  World world(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    world.process(rank).progress.busy = rank == 0 ? 0.2 : 0.1;
    world.process(rank).progress.busy_steps = 50;
  }
  EXPECT_EQ(world.passes(1),
            Texts{"rank 0 takes 2.0 times the median step (200 ms against 100 ms)"});
}

}  // namespace
