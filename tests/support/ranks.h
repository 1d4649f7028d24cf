// Tests that run in several processes.
//
//   RANK_TEST(Collectives, Gather, 2) {
//     World world = ...;                      // every rank runs this body
//     EXPECT_EQ(gather(world, rank()), ...);  // rank() is 0 or 1, num_ranks() is 2
//   }
//
// From outside it is one ordinary test. It starts the test program again, once for each rank, with
// the environment of `accelerant launch` and with only this test. If a rank fails, dies or does not
// end in time, the test fails with the output of all ranks. If a rank skips, the test is skipped.
// Ranks have 60 seconds, times ACCELERANT_TEST_TIMEOUT_SCALE if that is set.
#pragma once

#include <accelerant/launch/debug_launcher.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace rank_test {

// The values of this rank. In the parent, where bodies do not run, they are -1 and 0.
inline int rank() {
  const char* value = std::getenv("RANK");
  return value == nullptr ? -1 : std::atoi(value);
}
inline int num_ranks() {
  const char* value = std::getenv("WORLD_SIZE");
  return value == nullptr ? 0 : std::atoi(value);
}

struct Options {
  int num_ranks = 2;
  double timeout = 60;  // seconds
  double grace = 5;     // seconds for the others when one has failed
  std::map<std::string, std::string> environment = {};  // added to the launcher's
};

// Whether this process is a rank of a RANK_TEST.
bool is_rank();

// Runs the current test as ranks and returns how they ended, without checking it.
accelerant::launch::RunRanksResult run(const Options& options);

// The same, but fails if they do not succeed.
void run_and_expect_success(const Options& options);

}  // namespace rank_test

using rank_test::num_ranks;  // NOLINT: for the bodies of tests
using rank_test::rank;       // NOLINT

// RANK_TEST with {.num_ranks = …, .timeout = …, .environment = …}.
#define RANK_TEST_WITH(suite, name, ...)                                 \
  static void suite##_##name##_body();                                   \
  TEST(suite, name) {                                                    \
    if (!rank_test::is_rank()) {                                         \
      rank_test::run_and_expect_success(rank_test::Options __VA_ARGS__); \
      return;                                                            \
    }                                                                    \
    suite##_##name##_body();                                             \
  }                                                                      \
  static void suite##_##name##_body()

#define RANK_TEST(suite, name, count) RANK_TEST_WITH(suite, name, {.num_ranks = count})
