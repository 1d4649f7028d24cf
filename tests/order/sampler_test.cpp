// Orders and random numbers: pure functions of (seed, epoch, index), the same on every platform.
#include <accelerant/order/sampler.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "support/expect_error.h"

namespace {

using accelerant::data::Random;
using accelerant::data::RandomSampler;
using accelerant::data::SequentialSampler;
using accelerant::data::WeightedSampler;
using Order = std::vector<int64_t>;

Order sorted(Order order) {
  std::sort(order.begin(), order.end());
  return order;
}

Order counting(int64_t length) {
  Order order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Recorded once. A change here changes the data order of every saved run: never do that.
TEST(Order, GoldenValues) {
  EXPECT_EQ(RandomSampler(10).order(0, 0), (Order{3, 2, 4, 9, 5, 7, 6, 0, 1, 8}));
  EXPECT_EQ(RandomSampler(10).order(42, 7), (Order{9, 7, 4, 3, 0, 6, 5, 1, 8, 2}));
  EXPECT_EQ(RandomSampler(5, {.replacement = true, .num_samples = 8}).order(42, 7),
            (Order{1, 4, 0, 3, 4, 0, 3, 1}));
  EXPECT_EQ(WeightedSampler({0.1, 0.0, 0.3, 0.6}, 8).order(42, 7), (Order{2, 3, 2, 3, 3, 2, 3, 2}));
  EXPECT_EQ(WeightedSampler({0.1, 0.0, 0.3, 0.6}, 3, false).order(42, 7), (Order{2, 3, 0}));
  Random random(42, 7, 3);
  EXPECT_EQ(random(), 3608140966164903378ULL);
  EXPECT_EQ(random.uniform(), 0.20973812887125609);
  EXPECT_EQ(random.integer(1000), 931);
  EXPECT_NEAR(random.normal(), -0.75169999718545444, 1e-12);
}

TEST(Order, SequentialCounts) {
  EXPECT_EQ(SequentialSampler(4).order(1, 2), (Order{0, 1, 2, 3}));
  EXPECT_TRUE(SequentialSampler(0).order(1, 2).empty());
}

TEST(Order, RandomIsAPermutationThatChangesWithSeedAndEpoch) {
  const RandomSampler sampler(100);
  EXPECT_EQ(sorted(sampler.order(1, 0)), counting(100));
  EXPECT_EQ(sampler.order(1, 0), sampler.order(1, 0));
  EXPECT_NE(sampler.order(1, 0), sampler.order(1, 1));
  EXPECT_NE(sampler.order(1, 0), sampler.order(2, 0));
  EXPECT_NE(sampler.order(1, 1), sampler.order(2, 0));
}

// Each index is equally often at each position.
TEST(Order, PermutationsAreUniform) {
  constexpr int64_t kLength = 8;
  constexpr int kEpochs = 16000;
  const RandomSampler sampler(kLength);
  std::vector<int> counts(kLength * kLength);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Order order = sampler.order(5, epoch);
    for (int64_t place = 0; place < kLength; ++place) {
      ++counts[static_cast<std::size_t>(place * kLength + order[static_cast<std::size_t>(place)])];
    }
  }
  double chi_square = 0;
  const double expected = double{kEpochs} / kLength;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_square, 49 + 6 * std::sqrt(2.0 * 49));  // (8 - 1)^2 degrees of freedom
}

TEST(Order, RandomWithNumSamples) {
  EXPECT_EQ(RandomSampler(10, {.num_samples = 4}).size(), 4);
  const Order few = RandomSampler(10, {.num_samples = 4}).order(3, 0);
  EXPECT_EQ(std::set<int64_t>(few.begin(), few.end()).size(), 4U);
  const Order many = RandomSampler(10, {.num_samples = 25}).order(3, 0);
  ASSERT_EQ(many.size(), 25U);
  EXPECT_EQ(sorted({many.begin(), many.begin() + 10}), counting(10));
  EXPECT_EQ(sorted({many.begin() + 10, many.begin() + 20}), counting(10));
  EXPECT_NE(Order(many.begin(), many.begin() + 10), Order(many.begin() + 10, many.begin() + 20));
}

TEST(Order, WeightsAreKept) {
  const WeightedSampler sampler({1.0, 0.0, 3.0}, 40000);
  std::vector<double> share(3);
  for (const int64_t index : sampler.order(9, 0))
    share[static_cast<std::size_t>(index)] += 1.0 / 40000;
  EXPECT_NEAR(share[0], 0.25, 0.015);
  EXPECT_EQ(share[1], 0.0);
  EXPECT_NEAR(share[2], 0.75, 0.015);
}

TEST(Order, WeightsWithoutReplacement) {
  const WeightedSampler sampler({1.0, 0.0, 3.0, 1e-300}, 3, false);
  int heavy_first = 0;
  for (int64_t epoch = 0; epoch < 2000; ++epoch) {
    const Order order = sampler.order(9, epoch);
    EXPECT_EQ(sorted(order), (Order{0, 2, 3}));
    heavy_first += order[0] == 2 ? 1 : 0;
  }
  EXPECT_NEAR(heavy_first / 2000.0, 0.75, 0.05);
}

TEST(Order, Refusals) {
  EXPECT_TRUE(contains(error_of([] { SequentialSampler(-1); }), "negative length"));
  EXPECT_TRUE(contains(error_of([] { RandomSampler(0, {.num_samples = 1}); }), "empty data set"));
  EXPECT_TRUE(contains(error_of([] { RandomSampler(3, {.num_samples = -1}); }), "num_samples"));
  EXPECT_TRUE(contains(error_of([] { WeightedSampler({1.0, -1.0}, 1); }), "at index 1"));
  EXPECT_TRUE(contains(error_of([] { WeightedSampler({1.0, NAN}, 1); }), "at index 1"));
  EXPECT_TRUE(contains(error_of([] { WeightedSampler({0.0}, 1); }), "above 0"));
  EXPECT_TRUE(contains(error_of([] { WeightedSampler({}, 1); }), "above 0"));
  EXPECT_TRUE(contains(error_of([] { WeightedSampler({1.0, 0.0}, 2, false); }), "at most 1"));
}

TEST(RandomNumbers, DependOnSeedEpochAndIndexOnly) {
  const auto first = [](uint64_t seed, int64_t epoch, int64_t index) {
    return Random(seed, epoch, index)();
  };
  EXPECT_EQ(first(1, 2, 3), first(1, 2, 3));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      for (int64_t index = 0; index < 100; ++index) seen.insert(first(seed, epoch, index));
    }
  }
  EXPECT_EQ(seen.size(), 10000U);
}

TEST(RandomNumbers, HaveTheMomentsTheyShould) {
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, lag = 0, before = 0.5;
  constexpr int kCount = 100000;
  // One number from each stream: neighbouring samples must not be correlated.
  for (int64_t index = 0; index < kCount; ++index) {
    Random random(11, 0, index);
    const double value = random.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    squares += value * value;
    lag += (value - 0.5) * (before - 0.5);
    before = value;
    const double normal = random.normal();
    normal_sum += normal;
    normal_squares += normal * normal;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.005);
  EXPECT_NEAR(lag / kCount, 0.0, 0.002);
  EXPECT_NEAR(normal_sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(normal_squares / kCount, 1.0, 0.03);
}

TEST(RandomNumbers, IntegersAreUniform) {
  Random random(1, 0, 0);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[static_cast<std::size_t>(random.integer(7))];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  // A range for which plain remainders would favour the lower half two to one.
  const int64_t wide = (int64_t{1} << 62) + (int64_t{1} << 61);
  int low = 0;
  for (int i = 0; i < 20000; ++i) low += random.integer(wide) < wide / 2 ? 1 : 0;
  EXPECT_NEAR(low, 10000, 500);
  EXPECT_TRUE(contains(error_of([&] { random.integer(0); }), "n >= 1"));
}

TEST(RandomNumbers, ServeTheStandardLibrary) {
  static_assert(std::uniform_random_bit_generator<Random>);
  Random random(1, 0, 0);
  std::uniform_real_distribution<double> distribution(2.0, 3.0);
  const double value = distribution(random);
  EXPECT_GE(value, 2.0);
  EXPECT_LT(value, 3.0);
  EXPECT_GE(random.uniform(4.0, 5.0), 4.0);
}

}  // namespace
