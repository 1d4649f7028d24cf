#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace {

RANK_TEST(RankTest, RunsEveryRank, 3) {
  EXPECT_EQ(num_ranks(), 3);
  EXPECT_GE(rank(), 0);
  EXPECT_LT(rank(), 3);
}

RANK_TEST_WITH(RankTest, TakesOptions, {.num_ranks = 1, .environment = {{"MINE", "yes"}}}) {
  EXPECT_STREQ(std::getenv("MINE"), "yes");
}

TEST(RankTest, BodiesDoNotRunInTheParent) {
  EXPECT_FALSE(rank_test::is_rank());
  EXPECT_EQ(rank(), -1);
}

// Each of the following tests starts itself as ranks and checks how they fail.

TEST(RankTest, AFailingExpectationFailsTheTestWithItsOutput) {
  if (rank_test::is_rank()) {
    printf("output of rank %d\n", rank());
    fflush(stdout);
    EXPECT_EQ(rank(), 0);
    if (rank() == 0) sleep(1000);
    return;
  }
  const auto result = rank_test::run({.num_ranks = 2});
  EXPECT_EQ(result.ranks[1].exit_code, 1);
  EXPECT_TRUE(contains(result.report, "rank 1 of 2 failed: exit code 1"));
  EXPECT_TRUE(contains(result.report, "out: output of rank 1"));
  EXPECT_TRUE(contains(result.report, "Which is: 1"));
}

TEST(RankTest, ADeadRankFailsTheTest) {
  if (rank_test::is_rank()) {
    if (rank() == 1) raise(SIGKILL);
    sleep(1000);
  }
  const auto result = rank_test::run({.num_ranks = 2});
  EXPECT_TRUE(contains(result.report, "rank 1 of 2 failed: SIGKILL"));
}

TEST(RankTest, AHangingRankFailsTheTest) {
  if (rank_test::is_rank()) {
    if (rank() == 1) sleep(1000);
    return;
  }
  EXPECT_TRUE(
      contains(rank_test::run({.num_ranks = 2, .timeout = 0.5}).report, "did not end within"));
}

TEST(RankTest, AFailureOfTheRanksIsAFailureOfTheTest) {
  if (rank_test::is_rank()) {
    FAIL();
  }
  EXPECT_NONFATAL_FAILURE(rank_test::run_and_expect_success({.num_ranks = 1}),
                          "rank 0 of 1 failed");
}

}  // namespace
