// The line that shows where the time went.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "accelerant/track/timeline.h"

namespace accelerant {
namespace {

PhaseTimes made_up(double total, std::map<Phase, double> seconds, int64_t steps) {
  PhaseTimes times{.total = total};
  for (const auto& [phase, value] : seconds) times.seconds[static_cast<std::size_t>(phase)] = value;
  times.counts[static_cast<std::size_t>(Phase::step)] = steps;
  return times;
}

TEST(SummaryLine, TellsShares) {
  EXPECT_EQ(summary_line(made_up(4,
                                 {{Phase::data, 0.48},
                                  {Phase::forward, 1.2},
                                  {Phase::backward, 1.8},
                                  {Phase::reduction, 0.2},
                                  {Phase::step, 0.32}},
                                 1250)),
            "time of 1,250 updates: 12 % data, 30 % forward, 45 % backward, 5 % reduction, "
            "8 % step; 3.2 ms per update");
}

TEST(SummaryLine, PutsSmallPartsTogether) {
  EXPECT_EQ(summary_line(made_up(1, {{Phase::forward, 0.5}, {Phase::schedule, 0.004}}, 1)),
            "time of 1 update: 50 % forward, 50 % other; 1.0 s per update");
  EXPECT_EQ(summary_line(made_up(2e-4, {{Phase::step, 2e-4}}, 10)),
            "time of 10 updates: 100 % step; 20 us per update");
}

TEST(SummaryLine, LeavesEvaluationOutOfTheTimePerUpdate) {
  EXPECT_EQ(summary_line(made_up(4, {{Phase::forward, 3}, {Phase::evaluation, 1}}, 1000)),
            "time of 1,000 updates: 75 % forward, 25 % evaluation; 3.0 ms per update, evaluation "
            "not counted");
}

TEST(SummaryLine, SaysSoWhereThereIsLittleToTell) {
  EXPECT_EQ(summary_line(made_up(0.012, {{Phase::evaluation, 0.003}}, 0)),
            "time of 12 ms: 25 % evaluation, 75 % other");
  EXPECT_EQ(summary_line(made_up(0.5, {}, 0)), "time of 500 ms: 100 % other");
  EXPECT_EQ(summary_line({}), "time of 0.0 us: nothing was recorded");
  EXPECT_EQ(summary_line(made_up(1e4, {{Phase::step, 1e4}}, 1'234'567)),
            "time of 1,234,567 updates: 100 % step; 8.1 ms per update");
}

}  // namespace
}  // namespace accelerant
