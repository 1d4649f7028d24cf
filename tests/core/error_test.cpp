#include "accelerant/core/error.h"

#include <gtest/gtest.h>

namespace {

using accelerant::Error;
using accelerant::ErrorDetails;

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

}  // namespace
