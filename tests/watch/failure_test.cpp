#include "watch/failure.h"

#include <accelerant/core/error.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace {

using accelerant::dist::c10d_message;
using accelerant::dist::FailedExchange;
using accelerant::dist::FailureHandler;
using accelerant::dist::Progress;
using accelerant::dist::rethrow_as_error;

std::string translated(const std::string& text) {
  return whole_error_of([&] {
    rethrow_as_error(std::make_exception_ptr(std::runtime_error(text)),
                     FailedExchange{.operation = "gather", .rank = 1, .size = 4, .step = 30});
  });
}

// The cause, what to do, where this process noticed it, and what the connection said: each once.
TEST(FailureTest, ErrorsSayEachThingOnce) {
  for (const char* text : {"[pair.cc:534] Connection closed by peer [127.0.0.1]:4711",
                           "writev: Connection reset by peer", "Broken pipe"}) {
    EXPECT_EQ(translated(text),
              "Another process has closed its connection; look at the output of the others. Rank 1 "
              "of 4 lost its connection to another process (gather, step 30): " +
                  std::string(text));
  }
  for (const char* text : {"[pair.cc:144] Timed out waiting 6000ms for recv operation to complete",
                           "[buffer.cc:72] Application timeout caused pair closure"}) {
    EXPECT_EQ(translated(text),
              "There was no answer; if processes are only slow, raise the timeout of the process "
              "group. Rank 1 of 4 waited too long for the others (gather, step 30): " +
                  std::string(text));
  }
  EXPECT_EQ(translated("unsupported type"),
            "Unsupported type; look at the output of the other processes for the first error. Rank "
            "1 of 4 failed to exchange data (gather, step 30)");
}

// It is used where rank and step are given separately: in the report and on standard error.
TEST(FailureTest, TheBriefFormLeavesOutRankAndStep) {
  try {
    rethrow_as_error(std::make_exception_ptr(std::runtime_error("Broken pipe")),
                     FailedExchange{.operation = "gather", .rank = 1, .size = 4, .step = 30});
  } catch (const accelerant::dist::ExchangeError& error) {
    EXPECT_EQ(error.brief(),
              "Another process has closed its connection; look at the output of the others. This "
              "process lost its connection to another process (gather): Broken pipe");
    EXPECT_TRUE(error.is_consequence());
  }
}

TEST(FailureTest, StacksAreLeftOut) {
  EXPECT_EQ(
      c10d_message("Broken pipe\nException raised from sendBytes at utils.hpp:643\nframe #0: x"),
      "Broken pipe");
  EXPECT_EQ(c10d_message("two\nlines\n"), "two\nlines");
  EXPECT_EQ(c10d_message(
                "Connection closed by peer [::1]:2. This is typically caused by a remote worker "
                "crashing. Check the logs of the remote worker before reporting an error. GLHF!"),
            "Connection closed by peer [::1]:2");
}

TEST(FailureTest, AnErrorOfOursStaysAsItIs) {
  const auto text = whole_error_of([] {
    rethrow_as_error(std::make_exception_ptr(accelerant::Error("as it is")), FailedExchange{});
  });
  EXPECT_EQ(text, "as it is");
}

// Each test ends a process of its own.
class FailureDeathTest : public testing::Test {
 protected:
  FailureDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (rank_test::is_rank()) return;
    // The process of the death test runs this again and must use the same folder.
    if (std::getenv("FAILURE_TEST_FOLDER") == nullptr) {
      char folder[] = "/tmp/failure_test.XXXXXX";
      setenv("FAILURE_TEST_FOLDER", mkdtemp(folder), 1);
    }
    report_ = std::string(std::getenv("FAILURE_TEST_FOLDER")) + "/error.json";
    setenv("TORCHELASTIC_ERROR_FILE", report_.c_str(), 1);
  }
  ~FailureDeathTest() override {
    if (rank_test::is_rank()) return;
    unlink(report_.c_str());
    rmdir(std::getenv("FAILURE_TEST_FOLDER"));
    unsetenv("FAILURE_TEST_FOLDER");
    unsetenv("TORCHELASTIC_ERROR_FILE");
  }

  std::string report_;
};

[[noreturn]] void fail_uncaught() {
  Progress progress;
  for (int i = 0; i < 5; ++i) progress.begin_step();
  const FailureHandler handler(3, progress, nullptr);
  std::thread([] { throw std::runtime_error("out of luck"); }).join();
  std::abort();
}

TEST_F(FailureDeathTest, AnUncaughtExceptionIsReported) {
  EXPECT_EXIT(fail_uncaught(), testing::ExitedWithCode(1),
              "\\[rank 3\\] terminated in step 5: out of luck");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "out of luck");
  EXPECT_EQ(report->rank, 3);
  EXPECT_EQ(report->step, 5);
}

TEST_F(FailureDeathTest, AStuckProcessIsEnded) {
  EXPECT_EXIT(accelerant::dist::end_process_for("is blocked", 2, 7), testing::ExitedWithCode(1),
              "is blocked");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "is blocked");
  EXPECT_EQ(report->rank, 2);
  EXPECT_EQ(report->step, 7);
}

// A rank reports from the start: here it fails before it has an Accelerator. The handler is set
// when the program is loaded, so the test starts this program again as a rank.
TEST_F(FailureDeathTest, AnExceptionBeforeThereIsAHandlerIsReported) {
  if (rank_test::is_rank()) {
    std::thread([] { throw std::runtime_error("no such file"); }).join();
    return;
  }
  unsetenv("TORCHELASTIC_ERROR_FILE");
  const auto result = rank_test::run({.num_ranks = 1});
  ASSERT_TRUE(result.ranks[0].error) << result.report;
  EXPECT_EQ(result.ranks[0].error->message, "no such file");
  EXPECT_EQ(result.ranks[0].error->rank, 0);
  EXPECT_FALSE(result.ranks[0].error->step);
  EXPECT_EQ(result.ranks[0].exit_code, 1);
  EXPECT_TRUE(contains(result.ranks[0].err, "[rank 0] terminated: no such file"));
}

// The rank itself has not failed; it may go on and end for another reason.
TEST_F(FailureDeathTest, AProgramThatARankStartsWritesNoReport) {
  if (std::getenv("FAILURE_TEST_HELPER") != nullptr) {
    std::thread([] { throw std::runtime_error("only a helper"); }).join();
    return;
  }
  if (rank_test::is_rank()) {
    for (const bool is_program : {true, false}) {
      const pid_t helper = fork();
      if (helper == 0 && is_program) {
        setenv("FAILURE_TEST_HELPER", "1", 1);
        execl("/proc/self/exe", "helper",
              "--gtest_filter=FailureDeathTest.AProgramThatARankStartsWritesNoReport", nullptr);
      }
      if (helper == 0) std::terminate();
      int status = 0;
      waitpid(helper, &status, 0);
      if (status == 0) _exit(9);
    }
    _exit(7);
  }
  unsetenv("TORCHELASTIC_ERROR_FILE");
  const auto result = rank_test::run({.num_ranks = 1});
  EXPECT_EQ(result.ranks[0].exit_code, 7) << result.report;
  EXPECT_TRUE(contains(result.ranks[0].err, "only a helper"));
  EXPECT_FALSE(result.ranks[0].error);
}

[[noreturn]] void fail_at_step_0() {
  Progress progress;
  const FailureHandler handler(3, progress, nullptr);
  std::thread([] {
    throw std::runtime_error(
        "the loss is 1e9. This is typically a high learning rate\nframe #0: x");
  }).join();
  std::abort();
}

[[noreturn]] void fail_with_many_lines() {
  ::setenv("ACCELERANT_ERROR_IS_REPORTED", "1", 1);
  Progress progress;
  const FailureHandler handler(3, progress, nullptr);
  std::thread([] { throw std::runtime_error("different models\n  weight\n  bias"); }).join();
  std::abort();
}

// The launcher prints the whole error.
TEST_F(FailureDeathTest, OfALongErrorThatIsReportedOnlyTheFirstLineIsPrinted) {
  EXPECT_EXIT(fail_with_many_lines(), testing::ExitedWithCode(1),
              "terminated: different models \\[\\.\\.\\.\\]\n$");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "different models\n  weight\n  bias");
}

TEST_F(FailureDeathTest, StackFramesAreNotPrintedUnlessAskedFor) {
  EXPECT_EXIT(fail_at_step_0(), testing::ExitedWithCode(1), "high learning rate\n$");
  unlink(report_.c_str());
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_EXIT(fail_at_step_0(), testing::ExitedWithCode(1), "high learning rate\nframe #0: x\n$");
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
}

// Only the stack is removed; the program's own words stay, whatever they are. Before the first
// step, the report has no step.
TEST_F(FailureDeathTest, TheReportHasTheWordsOfTheProgram) {
  EXPECT_EXIT(fail_at_step_0(), testing::ExitedWithCode(1), "\\[rank 3\\] terminated: the loss");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "the loss is 1e9. This is typically a high learning rate");
  EXPECT_FALSE(report->step);
}

void write_to_a_broken_pipe() {
  Progress progress;
  { const FailureHandler handler(3, progress, nullptr); }
  raise(SIGPIPE);
  std::fputs("still here", stderr);
  _exit(0);
}

TEST_F(FailureDeathTest, BrokenConnectionsDoNotEndTheProcess) {
  EXPECT_EXIT(write_to_a_broken_pipe(), testing::ExitedWithCode(0), "still here");
}

void fail_after_the_handler() {
  Progress progress;
  std::set_terminate([] {
    std::fputs("the handler before", stderr);
    _exit(9);
  });
  { const FailureHandler handler(3, progress, nullptr); }
  std::terminate();
}

TEST_F(FailureDeathTest, TheHandlerBeforeComesBack) {
  EXPECT_EXIT(fail_after_the_handler(), testing::ExitedWithCode(9), "^the handler before$");
}

}  // namespace
