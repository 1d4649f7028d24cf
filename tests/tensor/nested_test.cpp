#include "accelerant/tensor/nested.h"

#include <accelerant/tensor/detail/nested_describe.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace {

using accelerant::map_tensors;
using accelerant::to_float32;
using accelerant::visit_tensors;

struct Output {
  at::Tensor logits;
  std::optional<at::Tensor> loss;
  std::map<std::string, std::vector<at::Tensor>> hidden;
  std::string note = "kept";
  int tokens = 7;

  static void visit_fields(auto& self, auto&& visit) {
    visit(self.logits);
    visit(self.loss);
    visit(self.hidden);
  }
};

struct Foreign {  // a struct that cannot be changed
  at::Tensor inside;
};

}  // namespace

template <>
struct accelerant::NestedFields<Foreign> {
  static void visit(auto& self, auto&& visitor) { visitor(self.inside); }
};

namespace {

struct Opaque {  // names no fields
  at::Tensor inside;
};

static_assert(accelerant::UnderstoodNesting<std::tuple<Output, double, std::string>>);
static_assert(!accelerant::UnderstoodNesting<Opaque>);
static_assert(!accelerant::UnderstoodNesting<std::vector<Opaque>>);
static_assert(!accelerant::UnderstoodNesting<std::tuple<at::Tensor&>>);  // what is not copied
static_assert(accelerant::UnderstoodNesting<std::vector<bool>>);
static_assert(accelerant::NestedTensors<std::map<int, std::pair<Output, at::Tensor>>>);
static_assert(!accelerant::NestedTensors<std::pair<int, at::Tensor>>);

at::Tensor half(double value) { return torch::full({1}, value, at::kHalf); }

TEST(Nested, VisitsInOrder) {
  const std::tuple<at::Tensor, std::vector<at::Tensor>, int, std::pair<at::Tensor, std::string>>
      value{half(1), {half(2), half(3)}, 99, {half(4), "text"}};
  std::vector<double> seen;
  visit_tensors(value, [&](const at::Tensor& tensor) { seen.push_back(tensor.item<double>()); });
  EXPECT_EQ(seen, (std::vector<double>{1, 2, 3, 4}));
}

TEST(Nested, MapKeepsStructureAndOtherLeaves) {
  const Output output{.logits = half(1),
                      .loss = std::nullopt,
                      .hidden = {{"a", {half(2)}}, {"b", {half(3), half(4)}}}};
  const Output doubled = map_tensors(output, [](const at::Tensor& t) { return t * 2; });
  EXPECT_EQ(doubled.logits.item<double>(), 2.0);
  EXPECT_FALSE(doubled.loss.has_value());
  EXPECT_EQ(doubled.hidden.at("b")[1].item<double>(), 8.0);
  EXPECT_EQ(doubled.note, "kept");
  EXPECT_EQ(doubled.tokens, 7);
  EXPECT_EQ(output.logits.item<double>(), 1.0);  // the original is untouched
}

TEST(Nested, EveryContainer) {
  const auto count = [](const auto& value) {
    int tensors = 0;
    visit_tensors(value, [&](const at::Tensor&) { ++tensors; });
    return tensors;
  };
  EXPECT_EQ(count(half(1)), 1);
  EXPECT_EQ(count(std::array<at::Tensor, 2>{half(1), half(2)}), 2);
  EXPECT_EQ(count(std::unordered_map<int, at::Tensor>{{1, half(1)}, {2, half(2)}}), 2);
  EXPECT_EQ(count(std::optional<std::vector<at::Tensor>>{{half(1), half(2), half(3)}}), 3);
  EXPECT_EQ(count(Foreign{half(1)}), 1);
  EXPECT_EQ(count(std::vector<std::pair<const std::string, at::Tensor>>{{"a", half(1)}}), 1);
  EXPECT_EQ(count(std::pair{std::vector<bool>{true}, half(1)}), 1);
  EXPECT_EQ(count(3.5), 0);
  EXPECT_EQ(map_tensors(std::string("as it is"), [](const at::Tensor& t) { return t; }),
            "as it is");
  EXPECT_EQ(to_float32(std::array<at::Tensor, 1>{half(1)})[0].scalar_type(), at::kFloat);
  EXPECT_EQ(to_float32(Foreign{half(1)}).inside.scalar_type(), at::kFloat);
}

// Two tables with the same keys may store them in a different order.
TEST(Nested, KeysOfHashTablesAreVisitedInOrder) {
  std::unordered_map<std::string, at::Tensor> table;
  for (const int64_t key : {7, 3, 9, 1, 5}) table[std::to_string(key)] = torch::tensor(key);
  std::vector<int64_t> seen;
  visit_tensors(table, [&](const at::Tensor& t) { seen.push_back(t.item<int64_t>()); });
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 3, 5, 7, 9}));
  int64_t next = 0;
  const auto numbered =
      map_tensors(table, [&](const at::Tensor&) { return torch::tensor(next++); });
  EXPECT_EQ(numbered.at("9").item<int64_t>(), 4);
}

TEST(Nested, MapsElementsThatCannotBeAssigned) {
  using Named = std::vector<std::pair<const std::string, at::Tensor>>;
  const Named named = {{"a", half(1)}, {"b", half(2)}};
  const Named doubled = map_tensors(named, [](const at::Tensor& t) { return t * 2; });
  EXPECT_EQ(doubled[1].first, "b");
  EXPECT_EQ(doubled[1].second.item<double>(), 4.0);
  EXPECT_EQ(named[1].second.item<double>(), 2.0);
}

TEST(Nested, Describe) {
  const auto text = [](const auto& value) {
    return accelerant::detail::describe_nesting(value, [](const at::Tensor&) { return 't'; });
  };
  const at::Tensor t = half(1);
  EXPECT_EQ(text(t), "t");
  EXPECT_EQ(text(std::vector{t, t}), "[t, t]");
  EXPECT_EQ(text(std::tuple{t, std::pair{t, 3}}), "(t, (t, value))");
  EXPECT_EQ(text(std::map<std::string, std::vector<at::Tensor>>{{"a", {t}}, {"b", {}}}),
            "{a: [t], b: []}");
  EXPECT_EQ(text(std::unordered_map<int, at::Tensor>{{2, t}, {1, t}}), "{1: t, 2: t}");
  EXPECT_EQ(text(std::pair{std::array{t}, std::vector<bool>{true, false}}),
            "([t], [value, value])");
  EXPECT_EQ(text(Output{.logits = t, .loss = {}, .hidden = {{"h", {t}}}}),
            "{t, nothing, {h: [t]}}");
}

TEST(Nested, ToFloat32) {
  const Output output{.logits = half(1), .loss = torch::ones({1}, at::kBFloat16), .hidden = {}};
  const Output cast = to_float32(output);
  EXPECT_EQ(cast.logits.scalar_type(), at::kFloat);
  EXPECT_EQ(cast.loss->scalar_type(), at::kFloat);
  for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kBool}) {
    const at::Tensor other = torch::ones({2}, type);
    EXPECT_TRUE(to_float32(other).is_same(other));
  }
  EXPECT_FALSE(to_float32(at::Tensor()).defined());
  const at::Tensor leaf = half(3).requires_grad_();
  to_float32(leaf).sum().backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kHalf);
}

}  // namespace
