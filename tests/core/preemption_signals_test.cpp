#include "core/preemption_signals.h"

#include <accelerant/core/error.h>
#include <accelerant/core/log.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"

namespace {

using accelerant::PreemptionSignals;
using std::chrono::milliseconds;

std::atomic<int> own_calls = 0;
void own_handler(int) { ++own_calls; }

using Handler = void (*)(int);
Handler handler_of(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

// Restores the handlers of the test program.
class PreemptionSignalsTest : public testing::Test {
 protected:
  PreemptionSignalsTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
    own_calls = 0;
    before_ = accelerant::set_log_handler(
        [this](accelerant::LogLevel, std::string_view text) { log_.emplace_back(text); });
  }
  ~PreemptionSignalsTest() override {
    accelerant::set_log_handler(before_);
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
  }

  std::vector<std::string> log_;
  accelerant::LogHandler before_;
};

TEST_F(PreemptionSignalsTest, TheFirstSignalIsRemembered) {
  const PreemptionSignals signals;
  EXPECT_EQ(PreemptionSignals::received(), 0);
  raise(SIGUSR1);
  EXPECT_EQ(PreemptionSignals::received(), SIGUSR1);
  raise(SIGTERM);  // the first SIGTERM: it may follow when the notice that SIGUSR1 gave is over
  EXPECT_EQ(PreemptionSignals::received(), SIGUSR1);
  EXPECT_TRUE(log_.empty());
}

TEST_F(PreemptionSignalsTest, AnyThreadMayReceiveIt) {
  const PreemptionSignals signals;
  std::thread([] { raise(SIGTERM); }).join();
  EXPECT_EQ(PreemptionSignals::received(), SIGTERM);
}

TEST_F(PreemptionSignalsTest, ReadsGoOn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer delays handlers of signals until the read has returned";
#endif
  const PreemptionSignals signals;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pthread_t reader = pthread_self();
  std::thread sender([&] {
    pthread_kill(reader, SIGUSR1);
    while (PreemptionSignals::received() == 0) std::this_thread::yield();
    EXPECT_EQ(write(ends[1], "x", 1), 1);
  });
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  sender.join();
  close(ends[0]);
  close(ends[1]);
}

TEST_F(PreemptionSignalsTest, TheHandlersBeforeComeBackWithTheLastObject) {
  signal(SIGTERM, SIG_IGN);
  signal(SIGUSR1, own_handler);
  {
    std::optional<PreemptionSignals> one(std::in_place, std::vector<int>{SIGTERM, SIGUSR1});
    ASSERT_EQ(log_.size(), 1U);
    EXPECT_TRUE(contains(log_[0], "the program's handler of SIGUSR1 does not run"));
    const PreemptionSignals other({SIGUSR1, SIGUSR2, SIGUSR1});
    one.reset();
    EXPECT_EQ(handler_of(SIGTERM), SIG_IGN);
    raise(SIGUSR1);
    EXPECT_EQ(PreemptionSignals::received(), SIGUSR1);
  }
  EXPECT_EQ(own_calls, 0);
  EXPECT_EQ(handler_of(SIGUSR1), own_handler);
  EXPECT_EQ(handler_of(SIGUSR2), SIG_DFL);
  EXPECT_EQ(PreemptionSignals::received(), 0);
  EXPECT_EQ(log_.size(), 1U);
}

TEST_F(PreemptionSignalsTest, AHandlerThatTheProgramSetsMeanwhileStays) {
  {
    const PreemptionSignals signals;
    signal(SIGUSR1, own_handler);
  }
  EXPECT_EQ(handler_of(SIGUSR1), own_handler);
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
}

TEST_F(PreemptionSignalsTest, ANextTrainingStartsAnew) {
  {
    const PreemptionSignals signals({SIGTERM}, milliseconds(0));
    raise(SIGTERM);
  }
  const PreemptionSignals signals({SIGTERM}, milliseconds(0));
  EXPECT_EQ(PreemptionSignals::received(), 0);
  raise(SIGTERM);
  EXPECT_EQ(PreemptionSignals::received(), SIGTERM);
}

TEST_F(PreemptionSignalsTest, ASecondSignalEndsTheProcess) {
  const auto end = [] {
    const PreemptionSignals signals({SIGTERM}, milliseconds(0));
    raise(SIGTERM);
    std::fputs("once", stderr);
    raise(SIGTERM);
    std::fputs("twice", stderr);
    _exit(3);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), "^once$");
}

// One comes from the cluster, one from the launcher, which the cluster has signalled too.
TEST_F(PreemptionSignalsTest, TheSameRequestFromTwoSidesDoesNot) {
  const PreemptionSignals signals({SIGTERM}, std::chrono::hours(1));
  raise(SIGTERM);
  raise(SIGTERM);
  EXPECT_EQ(PreemptionSignals::received(), SIGTERM);
}

TEST_F(PreemptionSignalsTest, UserSignalsMayBeRepeated) {
  const PreemptionSignals signals({SIGUSR1, SIGUSR2}, milliseconds(0));
  for (int i = 0; i < 3; ++i) {
    raise(SIGUSR1);
    raise(SIGUSR2);
  }
  EXPECT_EQ(PreemptionSignals::received(), SIGUSR1);
}

TEST_F(PreemptionSignalsTest, ChildrenEndAsByDefault) {
  const PreemptionSignals signals;
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGTERM);
    _exit(3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(PreemptionSignals::received(), 0);
}

TEST_F(PreemptionSignalsTest, UnusableSignalsAreRefused) {
  for (const int signal : {0, -1, 1000, SIGKILL, SIGSTOP, SIGSEGV}) {
    const std::string error = error_of([&] { const PreemptionSignals signals({SIGTERM, signal}); });
    EXPECT_TRUE(contains(error, "cannot be used to request a save: expected SIGTERM"));
    EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
  }
}

}  // namespace
