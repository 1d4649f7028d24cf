#include "core/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/preemption_signals.h"

namespace {

using accelerant::BeforeEnd;
using accelerant::EndHandler;
using accelerant::Ending;
using accelerant::Preempted;

// Each test ends a process of its own. GoogleTest catches what its own thread throws, so another
// thread throws.
class ProcessEndDeathTest : public testing::Test {
 protected:
  ProcessEndDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

template <class Exception>
[[noreturn]] void throw_uncaught(Exception exception) {
  std::thread([&] { throw exception; }).join();
  std::abort();
}

void say(const char* text) { std::fputs(text, stderr); }

// A handler that prints its name and how the process ends.
std::function<void(Ending)> told(const char* name) {
  return [name](Ending how) {
    std::fprintf(stderr, "%s: %s;", name, how == Ending::failed ? "failed" : "preempted");
  };
}

// --- Preempted -----------------------------------------------------------------------------------

TEST_F(ProcessEndDeathTest, PreemptedEndsTheProcessWithItsExitCode) {
  const auto end = [] {
    const accelerant::PreemptionSignals signals;
    throw_uncaught(Preempted(SIGUSR1, "runs/last"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75),
              "^accelerant: SIGUSR1 received: state saved in runs/last, exit code 75\n$");
}

// The objects that watch for signals may be gone before the exception leaves main.
TEST_F(ProcessEndDeathTest, PreemptedEndsTheProcessAlsoAfterTheWatching) {
  const auto end = [] {
    { const accelerant::PreemptionSignals signals; }
    throw_uncaught(Preempted(SIGTERM, "a"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75), "^accelerant: SIGTERM received");
}

// --- The order -----------------------------------------------------------------------------------

TEST_F(ProcessEndDeathTest, WorkComesFirstThenWhatIsToldThenTheLineOfPreempted) {
  const auto end = [] {
    const EndHandler older(told("older"));
    const EndHandler handler(told("newer"));
    const BeforeEnd before([] { say("older work;"); });
    const BeforeEnd also([] { say("newer work;"); });
    throw_uncaught(Preempted(SIGTERM, "a"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75),
              "^newer work;older work;newer: preempted;accelerant: SIGTERM received");
}

TEST_F(ProcessEndDeathTest, TheNewestHandlerTellsOfAFailure) {
  const auto end = [] {
    const EndHandler older(told("older"));
    std::optional<EndHandler> gone(std::in_place, told("gone"));
    const BeforeEnd before([] { say("work;"); });
    gone.reset();
    throw_uncaught(std::runtime_error("bad batch"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1), "^work;older: failed;$");
}

TEST_F(ProcessEndDeathTest, WorkThatIsNoLongerThereIsNotDone) {
  const auto end = [] {
    const EndHandler handler(told("handler"));
    {
      const BeforeEnd before([] { say("work;"); });
    }
    std::terminate();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1), "^handler: failed;$");
}

// Forked children have none of the threads that the work may wait for, and do not speak for their
// parents.
TEST_F(ProcessEndDeathTest, ChildrenEndAsWithoutTheLibrary) {
  const auto end = [] {
    const EndHandler handler(told("handler"));
    const BeforeEnd before([] { say("work;"); });
    const pid_t child = fork();
    if (child == 0) std::terminate();
    int status = 0;
    waitpid(child, &status, 0);
    std::fprintf(stderr, "child: signal %d;", WTERMSIG(status));
    std::terminate();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1),
              "^terminate called without an active exception\nchild: signal 6;work;handler: "
              "failed;$");
}

// --- Handlers that the program sets --------------------------------------------------------------

TEST_F(ProcessEndDeathTest, OtherExceptionsGoToTheHandlerBefore) {
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

std::terminate_handler replaced = nullptr;

// The program's handler comes between two of the library's and calls the one it replaced.
TEST_F(ProcessEndDeathTest, AHandlerOfTheProgramMayCallTheOneBefore) {
  const auto end = [] {
    const EndHandler older(told("older"));
    replaced = std::set_terminate([] {
      say("of the program;");
      replaced();
    });
    const BeforeEnd before([] { say("work;"); });
    throw_uncaught(std::runtime_error("bad batch"));
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1), "^work;of the program;older: failed;$");
}

}  // namespace
