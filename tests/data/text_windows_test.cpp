#include <accelerant/data/text_windows.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <set>
#include <vector>

#include "support/expect_error.h"

namespace text_windows_test {
namespace {

using accelerant::data::TextCrops;
using accelerant::data::TextWindows;

std::vector<int64_t> all_indices(int64_t size) {
  std::vector<int64_t> indices(static_cast<std::size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(TextWindows, TargetsAreOneTokenLater) {
  const TextWindows windows(torch::arange(10, torch::kUInt8), {.length = 4, .stride = 3});
  ASSERT_EQ(windows.size(), 2);  // 0..3 and 3..6; 6..9 would lack a target
  const auto [input, target] = windows.get_batch({1, 0, 1});
  EXPECT_TRUE(
      input.equal(torch::tensor({{3, 4, 5, 6}, {0, 1, 2, 3}, {3, 4, 5, 6}}, torch::kInt64)));
  EXPECT_TRUE(target.equal(input + 1));
  EXPECT_TRUE(input.is_contiguous() && target.is_contiguous());
}

TEST(TextWindows, TheSizeIsTheNumberOfWholeWindows) {
  for (int64_t tokens = 2; tokens < 12; ++tokens) {
    for (int64_t length = 1; length < tokens; ++length) {
      for (int64_t stride = 1; stride < 12; ++stride) {
        const TextWindows windows(torch::arange(tokens), {.length = length, .stride = stride});
        int64_t expected = 0;
        for (int64_t begin = 0; begin + length + 1 <= tokens; begin += stride) ++expected;
        ASSERT_EQ(windows.size(), expected) << tokens << ' ' << length << ' ' << stride;
        const auto [input, target] = windows.get_batch(all_indices(windows.size()));
        EXPECT_LT(target.max().item<int64_t>(), tokens);
        EXPECT_EQ(input[-1][0].item<int64_t>(), (expected - 1) * stride);
      }
    }
  }
}

TEST(TextWindows, WithoutAStrideEveryTokenIsATargetOnce) {
  const TextWindows windows(torch::arange(13, torch::kInt16), {.length = 3});
  const auto [input, target] = windows.get_batch(all_indices(windows.size()));
  EXPECT_TRUE(target.flatten().equal(torch::arange(1, 13)));
}

TEST(TextWindows, AnEmptyBatchHasItsShape) {
  const TextWindows windows(torch::arange(13), {.length = 3});
  EXPECT_EQ(std::get<0>(windows.get_batch({})).sizes(), at::IntArrayRef({0, 3}));
}

TEST(TextWindows, BatchesAreMadeWhereTheTokensLie) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const TextWindows windows(torch::arange(10, torch::kUInt8).to(torch::kCUDA), {.length = 4});
  const auto [input, target] = windows.get_batch({1});
  EXPECT_TRUE(input.is_cuda() && target.is_cuda());
  EXPECT_TRUE(target.cpu().equal(torch::tensor({{5, 6, 7, 8}}, torch::kInt64)));
}

TEST(TextWindows, BadArgumentsAreRefused) {
  const at::Tensor tokens = torch::arange(10);
  const auto error = [](auto&& f) { return whole_error_of(f); };
  EXPECT_TRUE(
      contains(error([&] { TextWindows(tokens, {.length = 0}); }), "bad length: expected 1"));
  EXPECT_TRUE(
      contains(error([&] { TextWindows(tokens, {.length = 2, .stride = -1}); }), "bad stride"));
  EXPECT_TRUE(contains(error([&] { TextWindows(tokens, {.length = 10}); }),
                       "expected more than 10 tokens, got 10"));
  EXPECT_TRUE(contains(error([&] { TextWindows(tokens, {.length = INT64_MAX}); }), "too short"));
  EXPECT_TRUE(contains(error([&] {
                         TextWindows(tokens.view({2, 5}), {.length = 1});
                       }),
                       "expected integers in one dimension, got int64 [2, 5]"));
  EXPECT_TRUE(
      contains(error([&] { TextWindows(tokens.to(torch::kFloat), {.length = 1}); }), "float32"));
  EXPECT_TRUE(contains(error([&] { TextWindows(at::Tensor(), {.length = 1}); }), "undefined"));
  const TextWindows windows(tokens, {.length = 3});
  EXPECT_TRUE(contains(error([&] { windows.get_batch({0, 3}); }), "0 to 2, got 3"));
  EXPECT_TRUE(contains(error([&] { windows.get_batch({-1}); }), "got -1"));
  EXPECT_TRUE(contains(error([&] { TextCrops(tokens, {.length = 3, .count = 0}); }), "bad count"));
}

TEST(TextCrops, EveryPlaceIsTakenAndNoneOutside) {
  const TextCrops crops(torch::arange(12), {.length = 4, .count = 4000, .seed = 7});
  std::vector<int64_t> hits(12, 0);
  for (int64_t i = 0; i < crops.size(); ++i) ++hits.at(static_cast<std::size_t>(crops.begin_of(i)));
  for (std::size_t place = 0; place < hits.size(); ++place) {
    // Eight places, so 500 each; six deviations of 21 on both sides.
    EXPECT_NEAR(static_cast<double>(hits[place]), place < 8 ? 500 : 0, place < 8 ? 126 : 0)
        << place;
  }
}

TEST(TextCrops, AreAFunctionOfSeedAndIndex) {
  const at::Tensor tokens = torch::arange(1'000'000);
  const TextCrops one(tokens, {.length = 4, .count = 100, .seed = 1});
  const TextCrops same(tokens, {.length = 4, .count = 200, .seed = 1});
  const TextCrops other(tokens, {.length = 4, .count = 100, .seed = 2});
  const auto indices = all_indices(100);
  const auto [input, target] = one.get_batch(indices);
  EXPECT_TRUE(input.equal(std::get<0>(same.get_batch(indices))));
  EXPECT_FALSE(input.equal(std::get<0>(other.get_batch(indices))));
  EXPECT_TRUE(target.equal(input + 1));
  EXPECT_EQ(input[42][0].item<int64_t>(), one.begin_of(42));
  // Neighbouring seeds are no shifted copies of each other.
  std::set<int64_t> begins;
  for (const int64_t i : indices) begins.insert({one.begin_of(i), other.begin_of(i)});
  EXPECT_GT(begins.size(), 190U);
}

}  // namespace
}  // namespace text_windows_test
