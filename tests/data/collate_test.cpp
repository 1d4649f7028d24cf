#include <accelerant/data/collate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "support/expect_error.h"

namespace {

using accelerant::data::collate;

at::Tensor row(double value) { return torch::full({2}, value); }

void expect_equal(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_EQ(tensor.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(tensor, expected)) << tensor << expected;
}

TEST(Collate, TensorsAreStacked) {
  expect_equal(collate(std::vector<at::Tensor>{row(1), row(2)}),
               torch::tensor({{1.F, 1.F}, {2.F, 2.F}}));
}

TEST(Collate, NumbersBecomeTensors) {
  expect_equal(collate(std::vector<int>{1, 2}), torch::tensor({1, 2}, at::kLong));
  expect_equal(collate(std::vector<uint8_t>{1, 255}), torch::tensor({1, 255}, at::kLong));
  expect_equal(collate(std::vector<int64_t>{1, int64_t{1} << 40}),
               torch::tensor({int64_t{1}, int64_t{1} << 40}));
  expect_equal(collate(std::vector<float>{1.5F, 2.5F}), torch::tensor({1.5F, 2.5F}));
  expect_equal(collate(std::vector<double>{0.1, 2.5}), torch::tensor({0.1, 2.5}, at::kDouble));
  expect_equal(collate(std::vector<bool>{true, false}), torch::tensor({true, false}));
}

TEST(Collate, StringsBecomeAVector) {
  EXPECT_EQ(collate(std::vector<std::string>{"a", "b"}), (std::vector<std::string>{"a", "b"}));
}

TEST(Collate, ContainersGoElementByElement) {
  using Sample = std::tuple<at::Tensor, int, std::pair<std::string, bool>>;
  const auto [tensors, numbers, pair] =
      collate(std::vector<Sample>{{row(1), 3, {"x", true}}, {row(2), 4, {"y", false}}});
  EXPECT_EQ(tensors.sizes(), (at::IntArrayRef{2, 2}));
  expect_equal(numbers, torch::tensor({3, 4}, at::kLong));
  EXPECT_EQ(pair.first, (std::vector<std::string>{"x", "y"}));
  expect_equal(pair.second, torch::tensor({true, false}));

  const auto array = collate(std::vector<std::array<float, 2>>{{1, 2}, {3, 4}});
  expect_equal(array[1], torch::tensor({2.F, 4.F}));
  const auto vector =
      collate(std::vector<std::vector<at::Tensor>>{{row(1), row(2)}, {row(3), row(4)}});
  ASSERT_EQ(vector.size(), 2U);
  expect_equal(vector[0], torch::tensor({{1.F, 1.F}, {3.F, 3.F}}));
  const auto map =
      collate(std::vector<std::map<std::string, int>>{{{"a", 1}, {"b", 2}}, {{"a", 3}, {"b", 4}}});
  expect_equal(map.at("b"), torch::tensor({2, 4}, at::kLong));
  const auto hash = collate(std::vector<std::unordered_map<int, double>>{{{7, 1.0}}, {{7, 2.0}}});
  expect_equal(hash.at(7), torch::tensor({1.0, 2.0}, at::kDouble));
  const auto optional = collate(std::vector<std::optional<int>>{1, 2});
  expect_equal(optional.value(), torch::tensor({1, 2}, at::kLong));
  EXPECT_FALSE(collate(std::vector<std::optional<int>>{std::nullopt, std::nullopt}));
}

struct Sample {
  at::Tensor image, mask;
  std::vector<at::Tensor> levels;
  std::string note;  // not named, so the first sample's is kept
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.image);
    visit(self.mask);
    visit(self.levels);
  }
};

TEST(Collate, StructsGoFieldByField) {
  const Sample batch = collate(
      std::vector<Sample>{{row(1), row(2), {row(3)}, "first"}, {row(4), row(5), {row(6)}, ""}});
  expect_equal(batch.image, torch::tensor({{1.F, 1.F}, {4.F, 4.F}}));
  expect_equal(batch.mask, torch::tensor({{2.F, 2.F}, {5.F, 5.F}}));
  expect_equal(batch.levels.at(0), torch::tensor({{3.F, 3.F}, {6.F, 6.F}}));
  EXPECT_EQ(batch.note, "first");
}

TEST(Collate, ExamplesOfTorchToo) {
  using Example = torch::data::Example<>;
  const auto batch =
      collate(std::vector<Example>{{row(1), torch::tensor(3)}, {row(2), torch::tensor(4)}});
  static_assert(std::is_same_v<decltype(batch), const Example>);
  expect_equal(batch.target, torch::tensor({3, 4}));
  const auto labelled = collate(std::vector<torch::data::Example<at::Tensor, int>>{{row(1), 3}});
  expect_equal(labelled.target, torch::tensor({3}, at::kLong));
  const auto alone = collate(std::vector<torch::data::TensorExample>{{row(1)}, {row(2)}});
  EXPECT_EQ(alone.data.sizes(), (at::IntArrayRef{2, 2}));
}

TEST(Collate, WhatDiffersIsNamed) {
  const auto three = torch::ones({3});
  const std::vector<int64_t> indices = {40, 41, 42};
  const std::string message = error_of([&] {
    accelerant::data::collate(std::vector<at::Tensor>{row(1), row(2), three}, indices);
  });
  EXPECT_TRUE(contains(message, "[2] in sample 40 and [3] in sample 42"));
  EXPECT_TRUE(contains(error_of([&] {
                         collate(std::vector<at::Tensor>{row(1), at::Tensor()});
                       }),
                       "an undefined tensor in sample 1"));
  EXPECT_TRUE(
      contains(error_of([&] { collate(std::vector<at::Tensor>{at::Tensor()}); }), "undefined"));
  EXPECT_TRUE(contains(error_of([] {
                         collate(std::vector<std::vector<int>>{{1}, {1, 2}});
                       }),
                       "1 in sample 0 and 2 in sample 1"));
  EXPECT_TRUE(contains(error_of([] {
                         collate(std::vector<std::optional<int>>{1, std::nullopt});
                       }),
                       "a value in sample 0 and none in sample 1"));
  EXPECT_TRUE(contains(error_of([] {
                         collate(std::vector<std::map<int, int>>{{{1, 1}}, {{2, 1}}});
                       }),
                       "the same keys"));
}

struct Opaque {};
static_assert(!accelerant::data::Collatable<Opaque>);
static_assert(!accelerant::data::Collatable<std::tuple<int, Opaque>>);
static_assert(accelerant::data::Collatable<std::tuple<int, Sample>>);

}  // namespace
