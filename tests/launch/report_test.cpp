#include "launch/report.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace {

using accelerant::ErrorReport;
using accelerant::launch::describe_advice;
using accelerant::launch::describe_early_ends;
using accelerant::launch::describe_error;
using accelerant::launch::describe_still_running;
using accelerant::launch::RankResult;
using accelerant::launch::rest_of_error;
using accelerant::launch::without_error;

RankResult rank_with_error(const std::string& message) {
  RankResult rank;
  rank.error = ErrorReport{.message = message};
  return rank;
}

TEST(Report, LeavesOutLinesThatRepeatTheError) {
  const RankResult rank = rank_with_error("bad batch");
  EXPECT_EQ(without_error("loading\nbad batch\nbye\n", rank), "loading\nbye\n");
  EXPECT_EQ(without_error("[rank 1] terminated: bad batch\n", rank), "");
  EXPECT_EQ(without_error("  what():  bad batch", rank), "");
}

TEST(Report, KeepsLinesThatSayMore) {
  const RankResult rank = rank_with_error("bad batch");
  for (const char* line : {"bad batch 7 of 9\n", "notbad batch\n", "bad\nbatch\n", "\n"}) {
    EXPECT_EQ(without_error(line, rank), line);
  }
  EXPECT_EQ(without_error("bad batch\n", RankResult()), "bad batch\n");
  EXPECT_EQ(without_error("one\n\ntwo\n", rank_with_error("")), "one\n\ntwo\n");
}

TEST(Report, LeavesOutErrorsOfSeveralLinesAsAWhole) {
  const RankResult rank = rank_with_error("bad batch\n  expected 3\n}");
  EXPECT_EQ(without_error("{\n}\nError: bad batch\n  expected 3\n}\nbye\n", rank), "{\n}\nbye\n");
  EXPECT_EQ(without_error("Error: bad batch\nother\n", rank), "Error: bad batch\nother\n");
  // Only the last lines are known, and the first of them is inside the error.
  EXPECT_EQ(without_error("  expected 3\n}\nbye\n", rank), "bye\n");
}

TEST(Report, LeavesOutTheFirstLineOfAnErrorThatIsReportedInFull) {
  const RankResult rank = rank_with_error("bad batch\n  expected 3");
  EXPECT_EQ(without_error("loading\n[rank 1] terminated: bad batch [...]\n", rank), "loading\n");
}

TEST(Report, ShowsErrorsWithoutStackFrames) {
  const RankResult rank = rank_with_error(
      "bad shape\nException raised from f at f.cpp:1 (most recent call first):\nframe #0: f()\n");
  EXPECT_EQ(describe_error(rank), "bad shape");
  EXPECT_EQ(rest_of_error(rank), "");
  EXPECT_EQ(rest_of_error(rank_with_error("bad shape\nexpected 3\ngot 4")), "expected 3\ngot 4");
}

TEST(Report, SaysWhatToDoAboutASignal) {
  RankResult rank = {.exit_code = 137, .signal = SIGKILL};
  EXPECT_NE(describe_advice(rank).find("memory"), std::string::npos);
  rank.error = ErrorReport{.message = "the cause"};
  EXPECT_EQ(describe_advice(rank), "");
  EXPECT_EQ(describe_advice({.exit_code = 3}), "");
}

TEST(Report, NamesRanksThatEndedEarly) {
  const RankResult well = {.rank = 1};
  const RankResult failed = {.rank = 2, .exit_code = 3};
  const RankResult asked_to_end = {.rank = 3, .stopped = true};
  const RankResult well_too = {.rank = 4};
  EXPECT_EQ(describe_early_ends({failed, asked_to_end}), "");
  EXPECT_EQ(describe_early_ends({well, failed, asked_to_end}),
            "rank 1 had ended with exit code 0 before");
  EXPECT_EQ(describe_early_ends({well, failed, asked_to_end, well_too}),
            "ranks 1 and 4 had ended with exit code 0 before");
}

TEST(Report, NamesManyRanksInFewWords) {
  using std::chrono::seconds;
  EXPECT_EQ(describe_still_running({7}, {0, 1, 2, 3, 5, 6}, seconds(10)),
            "rank 7 ended (exit code 0) 10 s ago; ranks 0 to 3, 5 and 6 are still running");
  EXPECT_EQ(describe_still_running({1, 2}, {0}, seconds(10)),
            "ranks 1 and 2 ended (exit code 0), the first 10 s ago; rank 0 is still running");
}

}  // namespace
