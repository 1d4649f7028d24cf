// The rules of Accelerate's BatchSamplerShard, with the cases of its own tests.
#include <accelerant/order/detail/sharding.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "support/expect_error.h"

namespace {

using accelerant::data::Sharding;
using accelerant::data::ShardingOptions;
using Batches = std::vector<std::vector<int64_t>>;

Batches delivered(const Sharding& sharding) {
  Batches batches;
  for (int64_t step = 0; step < sharding.steps(); ++step)
    batches.push_back(sharding.positions(step));
  return batches;
}

struct Case {
  int64_t length;
  bool drop_last;
  Batches rank0, rank1;
};

void expect_cases(const std::vector<Case>& cases, ShardingOptions options) {
  options.num_processes = 2;
  for (const Case& expected : cases) {
    SCOPED_TRACE(testing::Message() << expected.length << " drop_last " << expected.drop_last);
    options.drop_last = expected.drop_last;
    options.rank = 0;
    EXPECT_EQ(delivered(Sharding(expected.length, options)), expected.rank0);
    options.rank = 1;
    EXPECT_EQ(delivered(Sharding(expected.length, options)), expected.rank1);
  }
}

const Batches kFirst3 = {{0, 1, 2}, {6, 7, 8}, {12, 13, 14}};
const Batches kSecond3 = {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}};

Batches with(Batches batches, std::vector<int64_t> last) {
  batches.push_back(std::move(last));
  return batches;
}

TEST(Sharding, NoSplitEven) {
  expect_cases({{24, false, with(kFirst3, {18, 19, 20}), with(kSecond3, {21, 22, 23})},
                {24, true, with(kFirst3, {18, 19, 20}), with(kSecond3, {21, 22, 23})},
                {21, false, with(kFirst3, {18, 19, 20}), with(kSecond3, {0, 1, 2})},
                {21, true, kFirst3, kSecond3},
                {22, false, with(kFirst3, {18, 19, 20}), with(kSecond3, {21, 0, 1})},
                {22, true, kFirst3, kSecond3},
                {20, false, with(kFirst3, {18, 19, 0}), with(kSecond3, {1, 2, 3})},
                {20, true, kFirst3, kSecond3},
                {2, false, {{0, 1, 0}}, {{1, 0, 1}}},
                {2, true, {}, {}}},
               {.batch_size = 3});
}

TEST(Sharding, SplitEven) {
  const Batches first = {{0, 1}, {4, 5}, {8, 9}, {12, 13}, {16, 17}};
  const Batches second = {{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}};
  expect_cases({{24, false, with(first, {20, 21}), with(second, {22, 23})},
                {24, true, with(first, {20, 21}), with(second, {22, 23})},
                {22, false, with(first, {20, 21}), with(second, {0, 1})},
                {22, true, first, second},
                {21, false, with(first, {20, 0}), with(second, {1, 2})},
                {21, true, first, second},
                {2, false, {{0, 1}}, {{0, 1}}},
                {2, true, {}, {}}},
               {.batch_size = 4, .split_batches = true});
}

TEST(Sharding, NoSplitUneven) {
  expect_cases({{24, false, with(kFirst3, {18, 19, 20}), with(kSecond3, {21, 22, 23})},
                {21, false, with(kFirst3, {18, 19, 20}), kSecond3},
                {21, true, kFirst3, kSecond3},
                {22, false, with(kFirst3, {18, 19, 20}), with(kSecond3, {21})},
                {20, false, with(kFirst3, {18, 19}), kSecond3},
                {2, false, {{0, 1}}, {}},
                {2, true, {}, {}}},
               {.batch_size = 3, .even_batches = false});
}

TEST(Sharding, SplitUneven) {
  const Batches first = {{0, 1}, {4, 5}, {8, 9}, {12, 13}, {16, 17}};
  const Batches second = {{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}};
  expect_cases({{24, false, with(first, {20, 21}), with(second, {22, 23})},
                {22, false, with(first, {20, 21}), second},
                {21, false, with(first, {20}), second},
                {2, false, {{0, 1}}, {}},
                {2, true, {}, {}}},
               {.batch_size = 4, .split_batches = true, .even_batches = false});
}

TEST(Sharding, BatchesOfVaryingLengths) {
  const std::vector<int64_t> lengths = {3, 2, 4, 3, 2};  // 0-2, 3-4, 5-8, 9-11, 12-13
  ShardingOptions options{.num_processes = 2, .even_batches = false};
  EXPECT_EQ(delivered(Sharding(lengths, options)), (Batches{{0, 1, 2}, {5, 6, 7, 8}, {12, 13}}));
  options.rank = 1;
  EXPECT_EQ(delivered(Sharding(lengths, options)), (Batches{{3, 4}, {9, 10, 11}}));
  options.even_batches = true;
  EXPECT_EQ(delivered(Sharding(lengths, options)), (Batches{{3, 4}, {9, 10, 11}, {0, 1, 2}}));
  EXPECT_EQ(Sharding(lengths, options).remainder(), 2);
  options.drop_last = true;
  EXPECT_EQ(delivered(Sharding(lengths, options)), (Batches{{3, 4}, {9, 10, 11}}));
  EXPECT_EQ(Sharding(lengths, options).remainder(), 0);
}

TEST(Sharding, OneBatchOfVaryingLengthGoesToEveryProcess) {
  for (const int64_t processes : {2, 3}) {
    for (int64_t rank = 0; rank < processes; ++rank) {
      const Sharding sharding(std::vector<int64_t>{2}, {.num_processes = processes, .rank = rank});
      EXPECT_EQ(delivered(sharding), (Batches{{0, 1}}));
    }
  }
}

TEST(Sharding, SevenBatchesOverThreeProcesses) {
  const std::vector<int64_t> lengths(7, 2);
  EXPECT_EQ(delivered(Sharding(lengths, {.num_processes = 3, .rank = 1})),
            (Batches{{2, 3}, {8, 9}, {0, 1}}));
  EXPECT_EQ(delivered(Sharding(lengths, {.num_processes = 3, .rank = 2})),
            (Batches{{4, 5}, {10, 11}, {2, 3}}));
}

TEST(Sharding, RemainderIsWhatTheLastGlobalBatchReallyHolds) {
  const ShardingOptions options{.batch_size = 4, .num_processes = 3};
  EXPECT_EQ(Sharding(24, options).remainder(), 0);
  EXPECT_EQ(Sharding(17, options).remainder(), 5);
  EXPECT_EQ(Sharding(17, options).samples(0), 12);
  EXPECT_EQ(Sharding(17, options).samples(1), 5);
  EXPECT_EQ(Sharding(0, options).steps(), 0);
  EXPECT_EQ(Sharding(0, options).remainder(), 0);
}

TEST(Sharding, GoesOnWithAnotherNumberOfProcesses) {
  const Sharding before(20, {.batch_size = 2, .num_processes = 2});
  const int64_t start = before.position_before(2);
  EXPECT_EQ(start, 8);
  EXPECT_EQ(delivered(Sharding(20, {.batch_size = 2, .num_processes = 4, .rank = 3}, start)),
            (Batches{{14, 15}, {2, 3}}));
  EXPECT_EQ(delivered(Sharding(20, {.batch_size = 5}, start)),
            (Batches{{8, 9, 10, 11, 12}, {13, 14, 15, 16, 17}, {18, 19, 0, 1, 2}}));
}

TEST(Sharding, SkippingCostsNoLoop) {
  const int64_t huge = int64_t{1} << 60;
  const ShardingOptions options{.batch_size = 3, .num_processes = 5, .rank = 2};
  const Sharding whole(huge, options);
  const Sharding rest(huge, options, whole.position_before(1'000'000'000'000));
  EXPECT_EQ(rest.positions(0), whole.positions(1'000'000'000'000));
  EXPECT_EQ(rest.steps(), whole.steps() - 1'000'000'000'000);
  EXPECT_EQ(whole.position_before(std::numeric_limits<int64_t>::max()), huge);
}

TEST(Sharding, Refusals) {
  EXPECT_TRUE(contains(
      error_of([] { Sharding(8, {.batch_size = 3, .num_processes = 2, .split_batches = true}); }),
      "batch_size 3 and 2 processes"));
  EXPECT_TRUE(contains(error_of([] {
                         Sharding({1, 2}, {.num_processes = 2, .split_batches = true});
                       }),
                       "cannot be split"));
  EXPECT_TRUE(contains(error_of([] { Sharding(8, {.batch_size = 0}); }), "got 0"));
  EXPECT_TRUE(contains(error_of([] { Sharding(8, {.num_processes = 0}); }), "number of processes"));
  EXPECT_TRUE(contains(error_of([] { Sharding(8, {.num_processes = 2, .rank = 2}); }), "rank"));
  EXPECT_TRUE(contains(error_of([] { Sharding(8, {}, 9); }), "position"));
  EXPECT_TRUE(contains(error_of([] { Sharding({3, 2}, {}, 2); }), "beginning of a batch"));
  EXPECT_TRUE(contains(error_of([] { Sharding({3, 0}, {}); }), "empty batch"));
  EXPECT_TRUE(contains(error_of([] { Sharding(8, {}).positions(8); }), "step is out of range"));
}

}  // namespace
