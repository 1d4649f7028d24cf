#include "dist/failure.h"

#include <accelerant/core/error.h>
#include <accelerant/core/error_report.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/expect_error.h"

namespace {

using accelerant::dist::brief;
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

TEST(FailureTest, ErrorsNameTheExchange) {
  for (const char* text : {"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed "
                           "by peer [127.0.0.1]:4711",
                           "writev: Connection reset by peer", "Broken pipe"}) {
    const std::string error = translated(text);
    EXPECT_TRUE(
        contains(error, "Rank 1 of 4 lost its connection to another process (gather, step 30)"));
    EXPECT_TRUE(contains(error, text));
  }
  for (const char* text : {"[pair.cc:144] Timed out waiting 6000ms for recv operation to complete",
                           "[buffer.cc:72] Application timeout caused pair closure"}) {
    const std::string error = translated(text);
    EXPECT_TRUE(contains(error, "Rank 1 of 4 waited too long for the others (gather, step 30)"));
    EXPECT_TRUE(contains(error, text));
  }
  EXPECT_TRUE(
      contains(translated("unsupported type"),
               "Rank 1 of 4 failed to exchange data (gather, step 30): got unsupported type"));
}

TEST(FailureTest, StacksAreLeftOut) {
  EXPECT_EQ(brief("Broken pipe\nException raised from sendBytes at utils.hpp:643\nframe #0: x"),
            "Broken pipe");
  EXPECT_EQ(brief("two\nlines\n"), "two\nlines");
}

TEST(FailureTest, AnErrorOfOursStaysAsItIs) {
  const auto text = whole_error_of([] {
    rethrow_as_error(std::make_exception_ptr(accelerant::Error("as it is")), FailedExchange{});
  });
  EXPECT_EQ(text, "as it is");
}

// In processes of their own, which end.
class FailureDeathTest : public testing::Test {
 protected:
  FailureDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // The same in the process of the death test, which runs this again.
    if (std::getenv("FAILURE_TEST_FOLDER") == nullptr) {
      char folder[] = "/tmp/failure_test.XXXXXX";
      setenv("FAILURE_TEST_FOLDER", mkdtemp(folder), 1);
    }
    report_ = std::string(std::getenv("FAILURE_TEST_FOLDER")) + "/error.json";
    setenv("TORCHELASTIC_ERROR_FILE", report_.c_str(), 1);
  }
  ~FailureDeathTest() override {
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
  EXPECT_EXIT(fail_uncaught(), testing::ExitedWithCode(1), "\\[rank 3\\] terminated: out of luck");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "out of luck");
  EXPECT_EQ(report->rank, 3);
  EXPECT_EQ(report->step, 5);
}

TEST_F(FailureDeathTest, AWaitInVainEndsTheProcess) {
  EXPECT_EXIT(accelerant::dist::end_process_for("waits in vain", 2, 7), testing::ExitedWithCode(1),
              "waits in vain");
  const auto report = accelerant::read_error_report(report_);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "waits in vain");
  EXPECT_EQ(report->rank, 2);
  EXPECT_EQ(report->step, 7);
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
