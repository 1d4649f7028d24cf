#include "accelerant/core/error.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <stdexcept>

namespace {

using accelerant::Error;
using accelerant::ErrorDetails;
using accelerant::Preempted;

TEST(Error, SaysWhatWasExpectedGotAndWhatToDo) {
  EXPECT_STREQ(
      Error(ErrorDetails{.problem = "bad type", .expected = "a", .got = "b", .hint = "use a"})
          .what(),
      "bad type: expected a, got b; use a");
  EXPECT_STREQ(Error(ErrorDetails{.problem = "bad", .got = "b"}).what(), "bad: got b");
  EXPECT_STREQ(Error(ErrorDetails{.problem = "bad", .hint = "retry"}).what(), "bad; retry");
  EXPECT_STREQ(Error("as it is").what(), "as it is");
  EXPECT_STREQ(Error("PyTorch's text.", "do this").what(), "PyTorch's text.\n  do this");
}

TEST(Preempted, SaysWhatHappened) {
  const Preempted preempted(SIGTERM, "runs/checkpoint_3");
  EXPECT_STREQ(preempted.what(), "SIGTERM received: state saved in runs/checkpoint_3");
  EXPECT_EQ(preempted.signal(), SIGTERM);
  EXPECT_EQ(preempted.checkpoint(), "runs/checkpoint_3");
}

TEST(Preempted, HandlersOfErrorsDoNotSwallowIt) {
  EXPECT_THROW(
      {
        try {
          throw Preempted(SIGUSR1, "a");
        } catch (const Error&) {
          FAIL();
        } catch (const std::runtime_error&) {
          FAIL();
        }
      },
      Preempted);
}

}  // namespace
