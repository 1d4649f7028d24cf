#include <accelerant/core/error.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "core/preempted_handler.h"
#include "core/preemption_signals.h"

namespace {

using accelerant::Preempted;

TEST(PreemptedTest, SaysWhatHappened) {
  const Preempted preempted(SIGTERM, "runs/checkpoint_3");
  EXPECT_STREQ(preempted.what(), "SIGTERM received: state saved in runs/checkpoint_3");
  EXPECT_EQ(preempted.signal(), SIGTERM);
  EXPECT_EQ(preempted.checkpoint(), "runs/checkpoint_3");
}

TEST(PreemptedTest, HandlersOfErrorsDoNotSwallowIt) {
  EXPECT_THROW(
      {
        try {
          throw Preempted(SIGUSR1, "a");
        } catch (const accelerant::Error&) {
          FAIL();
        } catch (const std::runtime_error&) {
          FAIL();
        }
      },
      Preempted);
}

// In processes of their own, which end. GoogleTest catches what its own thread throws, so another one does.
class PreemptedDeathTest : public testing::Test {
 protected:
  PreemptedDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

template <class Exception>
[[noreturn]] void throw_uncaught(Exception exception) {
  std::thread([&] { throw exception; }).join();
  std::abort();
}

TEST_F(PreemptedDeathTest, EndsTheProcessWithItsExitCode) {
  const auto end = [] {
    const accelerant::PreemptionSignals signals;
    throw_uncaught(Preempted(SIGUSR1, "runs/last"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75),
              "^accelerant: SIGUSR1 received: state saved in runs/last, exit code 75\n$");
}

// The objects that watched may be gone before the exception comes out of main.
TEST_F(PreemptedDeathTest, EndsTheProcessAlsoAfterTheWatching) {
  const auto end = [] {
    { const accelerant::PreemptionSignals signals; }
    throw_uncaught(Preempted(SIGTERM, "a"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75), "^accelerant: SIGTERM received");
}

TEST_F(PreemptedDeathTest, OtherExceptionsGoToTheHandlerBefore) {
  const auto end = [] {
    std::set_terminate([] {
      try {
        throw;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "before: %s", error.what());
      }
      _exit(9);
    });
    accelerant::handle_preempted();
    accelerant::handle_preempted();
    throw_uncaught(std::runtime_error("bad batch"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(9), "^before: bad batch$");
  const auto abort = [] {
    accelerant::handle_preempted();
    throw_uncaught(std::runtime_error("bad batch"));
  };
  EXPECT_EXIT(abort(), testing::KilledBySignal(SIGABRT), "bad batch");
}

}  // namespace
