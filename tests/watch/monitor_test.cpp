#include "watch/monitor.h"

#include <accelerant/core/log.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "watch/heartbeat.h"
#include "watch/whereabouts.h"

namespace {

using accelerant::LogLevel;
using accelerant::dist::Board;
using accelerant::dist::heartbeat_of;
using accelerant::dist::Monitor;
using accelerant::dist::MonitorOptions;
using accelerant::dist::ProcessState;
using accelerant::dist::Progress;
using std::chrono::milliseconds;

// A store in memory that can stop answering.
struct Shared {
  std::mutex mutex = {};
  std::vector<std::string> texts = {};
  bool answers = true;
  bool is_frozen = false;  // writes do not arrive

  void set(size_t rank, const std::string& text) {
    const std::lock_guard lock(mutex);
    texts[rank] = text;
  }
};

class MemoryBoard : public Board {
 public:
  MemoryBoard(std::shared_ptr<Shared> shared, size_t rank)
      : shared_(std::move(shared)), rank_(rank) {}

  void write(const std::string& text) override {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->is_frozen) shared_->texts[rank_] = text;
  }
  bool flush(milliseconds) override { return true; }
  std::optional<std::vector<std::string>> read(milliseconds) override {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->answers) return std::nullopt;
    return shared_->texts;
  }
  std::string last_error() const override { return ""; }

 private:
  std::shared_ptr<Shared> shared_;
  size_t rank_;
};

// What the monitors say. Tests can wait for a text.
class Said {
 public:
  Said() {
    before_ = accelerant::set_log_handler([this](LogLevel, std::string_view text) { add(text); });
  }
  ~Said() { accelerant::set_log_handler(before_); }

  void add(std::string_view text) {
    const std::lock_guard lock(mutex_);
    texts_.emplace_back(text);
    changed_.notify_all();
  }

  // A text that contains this part; empty if none comes for a long time.
  std::string await(const std::string& part) {
    std::unique_lock lock(mutex_);
    std::string found;
    changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const auto& text : texts_)
        if (text.find(part) != std::string::npos) found = text;
      return !found.empty();
    });
    return found;
  }

  // While it lives, whoever says something is blocked.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }

  // Texts that contain this part.
  size_t count_of(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(
        texts_, [&](const auto& text) { return text.find(part) != std::string::npos; }));
  }

  size_t count() {
    const std::lock_guard lock(mutex_);
    return texts_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  accelerant::LogHandler before_;
};

// All processes of a run, simulated in this process.
struct Processes {
  explicit Processes(size_t size, const MonitorOptions& monitor_options)
      : progress(size), options(monitor_options) {
    shared->texts.resize(size);
  }

  void start() {
    for (size_t rank = 0; rank < progress.size(); ++rank) start(rank);
  }

  void start(size_t rank) {
    monitors.push_back(
        std::make_unique<Monitor>(static_cast<int64_t>(rank), static_cast<int64_t>(progress.size()),
                                  options, std::make_unique<MemoryBoard>(shared, rank),
                                  progress[rank], [this, rank](const std::string& error) {
                                    said.add("rank " + std::to_string(rank) + ": " + error);
                                  }));
  }

  int64_t beat_of(size_t rank) const {
    const std::lock_guard lock(shared->mutex);
    return heartbeat_of(shared->texts[rank])->beat;
  }

  // Waits until the heartbeat of a rank contains this text.
  void await_heartbeat(size_t rank, const std::string& part) {
    for (int i = 0; i < 20'000; ++i) {
      {
        const std::lock_guard lock(shared->mutex);
        if (shared->texts[rank].find(part) != std::string::npos) return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    ADD_FAILURE() << "rank " << rank << " has written nothing of " << part;
  }

  Said said;  // includes what ranks say that would have ended
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::vector<Progress> progress;
  MonitorOptions options;
  std::vector<std::unique_ptr<Monitor>> monitors;
};

MonitorOptions quick() {
  return {.interval = milliseconds(5),
          .stuck_after = milliseconds(30),
          .mismatch_after = milliseconds(10)};
}

TEST(MonitorTest, NamesAHungProcessAndItsReturn) {
  Processes run(2, quick());
  run.start();
  {
    const auto gather = run.progress[0].collective("gather");
    EXPECT_TRUE(contains(run.said.await("rank 1 is at step 0, in user code"),
                         "rank 0 waits in gather (exchange 1)"));
  }
  EXPECT_NE(run.said.await("rank 1 goes on"), "");
}

TEST(MonitorTest, EveryProcessThatIsBlockedForEverIsTold) {
  Processes run(3, quick());
  run.start();
  const auto gather = run.progress[0].collective("gather");
  const auto also = run.progress[1].collective("gather");
  // Otherwise rank 2 could name only the one of them whose heartbeat it has seen.
  for (const size_t rank : {0U, 1U}) run.await_heartbeat(rank, "gather");
  const auto barrier = run.progress[2].collective("barrier");
  EXPECT_TRUE(contains(run.said.await("rank 0: is blocked in"), "exchange 1 of rank 2 is barrier"));
  EXPECT_NE(run.said.await("rank 1: is blocked in"), "");
  EXPECT_TRUE(contains(run.said.await("rank 2: is blocked in"), "exchange 1 of ranks 0 and 1 is"));
}

TEST(MonitorTest, AProcessThatHasLeftIsNotWaitedFor) {
  Processes run(2, quick());
  run.start();
  run.monitors[1]->stop();
  const auto gather = run.progress[0].collective("gather");
  EXPECT_TRUE(contains(run.said.await("can never complete"), "rank 1 has left the run"));
}

TEST(MonitorTest, SaysThatTheStoreIsSilent) {
  Processes run(2, quick());
  run.start();
  {
    const std::lock_guard lock(run.shared->mutex);
    run.shared->answers = false;
  }
  EXPECT_NE(run.said.await("the store has not answered"), "");
}

MonitorOptions quick_to_give_up() {
  auto options = quick();
  options.lost_after = milliseconds(100);
  return options;
}

TEST(MonitorTest, AProcessThatHasFallenSilentIsLost) {
  Processes run(2, quick_to_give_up());
  run.progress[1].begin_step();
  run.start(0);
  const accelerant::dist::Heartbeat last{.beat = 9, .progress = {.step = 7, .ordered = true}};
  run.shared->set(1, to_json(last));
  const auto gather = run.progress[0].collective("gather");
  const std::string text = run.said.await("rank 0: has waited in gather (exchange 1) for");
  EXPECT_TRUE(contains(text, "rank 1 has not answered for"));
  EXPECT_TRUE(contains(text, "(last heard at step 7, in user code)"));
}

TEST(MonitorTest, AStoreThatHasFallenSilentIsLost) {
  Processes run(2, quick_to_give_up());
  run.start();
  const auto gather = run.progress[0].collective("gather");
  {
    const std::lock_guard lock(run.shared->mutex);
    run.shared->answers = false;
  }
  const std::string text = run.said.await("rank 0: has waited in gather for");
  EXPECT_TRUE(contains(text, " s, and the store has not answered for "));
}

// What this process writes does not arrive either: the store is slow, and nobody is lost.
TEST(MonitorTest, NobodyIsLostInASlowStore) {
  auto options = quick_to_give_up();
  options.lost_after = milliseconds(1500);
  Processes run(2, options);
  run.start();
  const auto gather = run.progress[0].collective("gather");
  for (const size_t rank : {0U, 1U}) run.await_heartbeat(rank, "beat");
  {
    const std::lock_guard lock(run.shared->mutex);
    run.shared->is_frozen = true;
  }
  std::this_thread::sleep_for(milliseconds(4000));
  EXPECT_EQ(run.said.count_of("has waited"), 0U);
}

// A debugger stops a process for as long as somebody looks at it.
TEST(MonitorTest, AProcessInADebuggerIsNotLost) {
  Processes run(2, quick_to_give_up());
  const accelerant::dist::Heartbeat last{.beat = 9,
                                         .progress = {.ordered = true},
                                         .whereabouts = {.machine = "another", .is_traced = true}};
  run.shared->set(1, to_json(last));
  run.start(0);
  const auto gather = run.progress[0].collective("gather");
  EXPECT_NE(run.said.await("rank 1 has not answered"), "");
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(run.said.count_of("has waited"), 0U);
}

// A terminal that is held (Ctrl-S) blocks those who write to it.
TEST(MonitorTest, AProcessThatCannotLogIsNotSilent) {
  Processes run(2, quick());
  run.start();
  const auto held = run.said.hold();
  const auto gather = run.progress[0].collective("gather");
  run.await_heartbeat(0, "gather");
  std::this_thread::sleep_for(milliseconds(300));  // rank 0 has a warning to say by now
  const int64_t beat = run.beat_of(0);
  for (int i = 0; i < 20'000 && run.beat_of(0) < beat + 10; ++i) usleep(1000);
  EXPECT_GE(run.beat_of(0), beat + 10);
}

TEST(MonitorTest, StepsAreWrittenBeforeTheNextIntervalIsOver) {
  auto options = quick();
  options.interval = std::chrono::minutes(10);
  Processes run(2, options);
  run.start();
  run.await_heartbeat(1, "\"step\":0");
  for (int step = 0; step < 12; ++step) run.progress[1].begin_step();
  run.await_heartbeat(1, "\"step\":12");
}

TEST(MonitorTest, TracedProcessesAreKnown) {
  const auto own = accelerant::dist::own_whereabouts();
  EXPECT_FALSE(own.is_traced);  // unless somebody debugs this test
  EXPECT_EQ(own.pid, getpid());
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFEXITED(status)) GTEST_SKIP() << "this system forbids debuggers";
  auto of_child = own;
  of_child.pid = child;
  EXPECT_TRUE(is_traced(of_child));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_FALSE(is_traced(of_child));
  of_child.machine = "another";
  of_child.is_traced = true;
  EXPECT_TRUE(is_traced(of_child));
}

TEST(MonitorTest, NothingIsSaidOfProcessesThatEnd) {
  Processes run(3, {});
  run.start();
  for (int i = 0; i < 100; ++i)
    for (auto& progress : run.progress) {
      const auto gather = progress.collective("gather");
    }
  for (auto& monitor : run.monitors) monitor->stop();
  EXPECT_EQ(run.said.count(), 0U);
}

TEST(MonitorTest, WhoEnded) {
  Processes run(3, quick());
  run.start();
  // Ranks 1 and 0 have lost a connection, so rank 2 must have ended.
  run.monitors[1]->fail(ProcessState::lost, "Connection closed by peer");
  run.monitors[0]->fail(ProcessState::lost, "Connection closed by peer");
  EXPECT_EQ(run.monitors[0]->who_ended(milliseconds(5000)).cause,
            "rank 2 has ended without a word");
  // If rank 2 says why, its own words are used.
  run.monitors[2]->fail(ProcessState::failed, "out of memory");
  EXPECT_EQ(run.monitors[0]->who_ended(milliseconds(5000)).cause, "rank 2 failed: out of memory");
}

TEST(MonitorTest, WhoEndedIsNotKnownForLong) {
  Processes run(3, quick());
  run.start();
  run.monitors[0]->fail(ProcessState::lost, "Connection closed by peer");
  EXPECT_EQ(run.monitors[0]->who_ended(milliseconds(50)).cause,
            "of ranks 1 and 2 at least one has ended without a word");
  run.shared->answers = false;
  EXPECT_EQ(
      run.monitors[0]->who_ended(milliseconds(50)).cause,
      "the store does not answer either: the process that serves it (rank 0, or the launcher) "
      "has ended or is cut off");
}

TEST(MonitorTest, WhoIsLate) {
  Processes run(2, {});
  const auto gather = run.progress[0].collective("gather");
  run.progress[1].begin_step();
  run.start();
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string text;
  // This takes until the heartbeat of rank 1 arrives, which may be late on a busy machine.
  while (text != "rank 1 is behind, at step 1, in user code") {
    ASSERT_LT(std::chrono::steady_clock::now(), patience) << text;
    text = run.monitors[0]->who_is_late(milliseconds(1000));
  }
}

TEST(MonitorTest, AWorldLeftByAnExceptionHasFailed) {
  Processes run(2, quick());
  run.start();
  try {
    const struct Stop {
      Monitor* monitor;
      ~Stop() { monitor->stop(); }
    } stop{run.monitors[1].get()};
    throw std::runtime_error("any");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(run.monitors[0]->who_ended(milliseconds(5000)).cause, "rank 1 failed: an exception");
}

}  // namespace
