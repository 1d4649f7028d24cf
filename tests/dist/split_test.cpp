// Dividing values between processes.
#include <accelerant/dist/process_control.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "support/expect_error.h"

namespace {

using accelerant::dist::split_between;

using Numbers = std::vector<int>;

TEST(SplitBetween, TheFirstProcessesGetOneMore) {
  const Numbers values = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(split_between(values, 0, 3), (Numbers{0, 1, 2}));
  EXPECT_EQ(split_between(values, 1, 3), (Numbers{3, 4}));
  EXPECT_EQ(split_between(values, 2, 3), (Numbers{5, 6}));
}

TEST(SplitBetween, PaddingRepeatsTheLastElement) {
  const Numbers values = {0, 1, 2, 3};
  EXPECT_EQ(split_between(values, 0, 3, true), (Numbers{0, 1}));
  EXPECT_EQ(split_between(values, 1, 3, true), (Numbers{2, 3}));
  EXPECT_EQ(split_between(values, 2, 3, true), (Numbers{3, 3}));
}

TEST(SplitBetween, FewerValuesThanProcesses) {
  const Numbers values = {0, 1};
  EXPECT_EQ(split_between(values, 2, 3), Numbers{});
  EXPECT_EQ(split_between(values, 2, 3, true), Numbers{1});
  EXPECT_EQ(split_between(Numbers{}, 1, 3, true), Numbers{});
}

TEST(SplitBetween, TensorsAlongTheFirstDimension) {
  const auto values = torch::arange(10).view({5, 2});
  EXPECT_TRUE(split_between(values, 1, 2).equal(torch::tensor({{6, 7}, {8, 9}})));
  EXPECT_TRUE(split_between(values, 1, 2, true).equal(torch::tensor({{6, 7}, {8, 9}, {8, 9}})));
  EXPECT_TRUE(contains(error_of([] { split_between(torch::ones({}), 0, 2); }), "one dimension"));
}

TEST(SplitBetween, MapsKeepTheirKeysAndAreNotChanged) {
  const std::map<std::string, Numbers> values = {{"a", {1, 2, 3}}, {"b", {4, 5, 6}}};
  const auto before = values;
  EXPECT_EQ(split_between(values, 0, 2),
            (std::map<std::string, Numbers>{{"a", {1, 2}}, {"b", {4, 5}}}));
  EXPECT_EQ(values, before);
  const std::map<std::string, Numbers> uneven = {{"a", {1}}, {"b", {4, 5}}};
  EXPECT_TRUE(contains(error_of([&] { split_between(uneven, 0, 2); }), "lengths 1 and 2"));
}

TEST(SplitBetween, ARankOutOfRangeIsRefused) {
  EXPECT_TRUE(contains(error_of([] { split_between(Numbers{1}, 2, 2); }), "rank 2 of 2"));
}

}  // namespace
