#include "dist/preemption_watcher.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "support/random_seed.h"

namespace {

using accelerant::dist::Boundary;
using accelerant::dist::PreemptionWatcher;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The processes of a run, simulated in this one.
struct Rank {
  int64_t updates = 0;
  std::shared_ptr<PreemptionWatcher> watcher;
};

class Ranks {
 public:
  explicit Ranks(size_t count, milliseconds interval = milliseconds(1)) : ranks_(count) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    for (size_t i = 0; i < count; ++i) {
      ranks_[i].watcher = PreemptionWatcher::start(
          store, static_cast<int64_t>(i), static_cast<int64_t>(count),
          // Shared, because the watcher's thread may outlive this object a little.
          [signal = signal_of(i)] { return signal->load(); }, interval);
    }
  }
  ~Ranks() {
    for (Rank& rank : ranks_) rank.watcher->stop(seconds(60));
  }

  Rank& operator[](size_t i) { return ranks_[i]; }
  void send(size_t i, int signal) { *signals_[i] = signal; }

  // Counts one more update. Returns whether it is time to save.
  bool update(size_t i) {
    ++ranks_[i].updates;
    PreemptionWatcher& watcher = *ranks_[i].watcher;
    Boundary boundary = watcher.count_update();
    if (boundary == Boundary::wait) {
      EXPECT_TRUE(watcher.await_agreement(seconds(60)));
      boundary = watcher.boundary();
    }
    return boundary == Boundary::save;
  }

 private:
  std::shared_ptr<std::atomic<int>> signal_of(size_t i) {
    signals_.resize(std::max(signals_.size(), i + 1));
    return signals_[i] = std::make_shared<std::atomic<int>>(0);
  }

  std::vector<Rank> ranks_;
  std::vector<std::shared_ptr<std::atomic<int>>> signals_;
};

TEST(PreemptionWatcherTest, NothingHappensWithoutARequest) {
  Ranks ranks(2);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(ranks.update(0));
    EXPECT_FALSE(ranks.update(1));
  }
  EXPECT_FALSE(ranks[0].watcher->agreement());
}

TEST(PreemptionWatcherTest, TheOneThatIsAheadSetsTheUpdate) {
  Ranks ranks(2);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(ranks.update(0));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(ranks.update(1));
  ranks.send(1, SIGUSR1);
  for (size_t i : {0U, 1U}) ASSERT_TRUE(ranks[i].watcher->await_agreement(seconds(60)));
  for (size_t i : {0U, 1U}) {
    EXPECT_EQ(ranks[i].watcher->agreement()->update, 11);
    EXPECT_EQ(ranks[i].watcher->agreement()->signal, SIGUSR1);
    EXPECT_EQ(ranks[i].watcher->agreement()->rank, 1);
  }
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(ranks.update(1));
  EXPECT_TRUE(ranks.update(1));
  EXPECT_TRUE(ranks.update(0));
}

TEST(PreemptionWatcherTest, NobodySavesOnceOneHasLeft) {
  Ranks ranks(3);
  ranks[2].watcher->stop(seconds(60));
  ranks.send(0, SIGTERM);
  for (size_t i : {0U, 1U}) {
    ASSERT_TRUE(ranks[i].watcher->await_agreement(seconds(60)));
    EXPECT_EQ(ranks[i].watcher->agreement()->update, 0);
    EXPECT_EQ(ranks[i].watcher->count_update(), Boundary::too_late);
    for (int update = 0; update < 10; ++update) EXPECT_FALSE(ranks.update(i));
  }
}

TEST(PreemptionWatcherTest, NamesThoseWhoHaveNotAnswered) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto watcher = PreemptionWatcher::start(
      store, 1, 4, [] { return SIGTERM; }, milliseconds(1));
  while (watcher->count_update() != Boundary::wait) std::this_thread::yield();
  EXPECT_FALSE(watcher->await_agreement(milliseconds(0)));
  std::vector<int64_t> missing;
  // Repeats, because the watcher may have stopped at the boundary but not answered yet.
  while (missing.size() != 3) missing = watcher->missing(seconds(60)).value();
  EXPECT_EQ(missing, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(watcher->failure(), "");
  watcher->stop(seconds(60));
}

// The trainings run freely at different speeds. One or several of them get the signal at random
// updates.
TEST(PreemptionWatcherTest, AllStopAtTheSameUpdate) {
  const uint32_t seed = random_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t limit) { return random() % limit; };
  for (int round = 0; round < 300; ++round) {
    const size_t count = 1 + below(5);
    Ranks ranks(count, milliseconds(1 + below(3)));
    std::vector<int64_t> asked_at(count);
    for (size_t i = 0; i < count; ++i) {
      asked_at[i] = i == 0 || below(3) == 0 ? static_cast<int64_t>(1 + below(500)) : 0;
    }
    std::vector<size_t> pauses(count);  // the number of updates between pauses
    for (size_t i = 0; i < count; ++i) pauses[i] = 1 + below(50);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        do {
          if (ranks[i].updates + 1 == asked_at[i]) ranks.send(i, SIGTERM);
          if (static_cast<size_t>(ranks[i].updates) % pauses[i] == 0) std::this_thread::yield();
        } while (!ranks.update(i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 1; i < count; ++i) {
      ASSERT_EQ(ranks[i].updates, ranks[0].updates) << "round " << round;
    }
  }
}

}  // namespace
