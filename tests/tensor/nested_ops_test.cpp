// tests/accelerator/utilities_test.py compares the values with accelerate.utils.
#include "accelerant/tensor/nested.h"

#include <torch/torch.h>

#include <string>

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::concatenate;
using accelerant::find_batch_size;
using accelerant::find_device;
using accelerant::ignorant_find_batch_size;
using accelerant::pad_input_tensors;
using accelerant::send_to_device;
using accelerant::slice_tensors;
using Fill = accelerant::PadInputOptions::Fill;

struct Example {
  at::Tensor pixels;
  std::optional<at::Tensor> labels = {};
  std::unordered_map<std::string, at::Tensor> extra = {};
  std::string source = {};  // not a visited field

  static void visit_fields(auto& self, auto&& visit) {
    visit(self.pixels);
    visit(self.labels);
    visit(self.extra);
  }
};

using Everything = std::tuple<Example, std::pair<std::array<at::Tensor, 2>, std::vector<int>>,
                              std::map<int, std::vector<at::Tensor>>, double>;

Everything everything(int64_t rows, double value) {
  const auto filled = [&](double add) { return torch::full({rows, 2}, value + add); };
  return {Example{.pixels = filled(0),
                  .labels = filled(1),
                  .extra = {{"a", filled(2)}, {"b", filled(3)}, {"c", filled(4)}},
                  .source = "camera"},
          {{filled(5), at::Tensor()}, {1, 2}},
          {{7, {filled(6), filled(7)}}},
          0.5};
}

std::vector<at::Tensor> tensors_of(const auto& data) {
  std::vector<at::Tensor> tensors;
  accelerant::visit_tensors(data, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

class NestedOpsOn : public OnDevice {};
ON_EVERY_DEVICE(NestedOpsOn);

TEST_P(NestedOpsOn, SendToDevice) {
  const Everything moved = send_to_device(everything(3, 0.0), device(), /*non_blocking=*/true);
  for (const at::Tensor& tensor : tensors_of(moved)) {
    EXPECT_EQ(tensor.defined() ? tensor.device() : device(), device());
  }
  EXPECT_EQ(std::get<0>(moved).source, "camera");
  EXPECT_EQ(find_device(moved), device());
  const at::Tensor there = full({2}, 1.0);
  EXPECT_TRUE(send_to_device(there, device()).is_same(there));
}

TEST(NestedOps, FindDevice) {
  EXPECT_EQ(find_device(std::vector<at::Tensor>{at::Tensor(), torch::zeros({})}), at::kCPU);
  EXPECT_EQ(find_device(std::vector<at::Tensor>{}), std::nullopt);
  EXPECT_EQ(find_device(3), std::nullopt);
}

TEST(NestedOps, FindBatchSize) {
  EXPECT_EQ(find_batch_size(everything(3, 0.0)), 3);
  // The first parts may have no rows.
  const std::tuple<at::Tensor, int, at::Tensor, at::Tensor> data{
      {}, 1, torch::zeros({}), torch::zeros({5, 2})};
  EXPECT_EQ(find_batch_size(data), 5);
  EXPECT_EQ(ignorant_find_batch_size(torch::zeros({})), std::nullopt);
  EXPECT_TRUE(contains(error_of([] { find_batch_size(std::vector<at::Tensor>{}); }), "batch size"));
}

TEST(NestedOps, SliceTensors) {
  const Everything sliced = slice_tensors(everything(5, 0.0), 1, 3);
  for (const at::Tensor& tensor : tensors_of(sliced)) {
    EXPECT_EQ(tensor.defined() ? tensor.size(0) : 2, 2);
  }
  const at::Tensor rows = torch::arange(5);
  EXPECT_TRUE(slice_tensors(rows, -2, 99).equal(rows.slice(0, 3, 5)));
  EXPECT_TRUE(slice_tensors(rows, 0, 2).is_alias_of(rows));
  EXPECT_EQ(slice_tensors(rows, 9, 12).size(0), 0);
  EXPECT_EQ(slice_tensors(torch::full({}, 4.0), 0, 1).item<double>(), 4.0);
}

TEST(NestedOps, PadInputTensors) {
  const at::Tensor rows = torch::tensor({{1.0, 2.0}, {3.0, 4.0}});
  EXPECT_TRUE(
      pad_input_tensors(rows, 3).equal(torch::tensor({{1.0, 2.0}, {3.0, 4.0}, {0.0, 0.0}})));
  EXPECT_TRUE(pad_input_tensors(rows, 5, {.fill = Fill::first_rows})
                  .equal(torch::cat({rows, rows, rows.slice(0, 0, 1)})));
  EXPECT_TRUE(pad_input_tensors(rows, 3, {.dim = -1})
                  .equal(torch::tensor({{1.0, 2.0, 0.0}, {3.0, 4.0, 0.0}})));
  EXPECT_TRUE(pad_input_tensors(rows, 2).is_same(rows));
  const at::Tensor flat = torch::ones({3});
  EXPECT_TRUE(pad_input_tensors(flat, 2, {.dim = 1}).is_same(flat));
  EXPECT_EQ(pad_input_tensors(torch::zeros({0, 2}), 4, {.fill = Fill::first_rows}).size(0), 0);
  EXPECT_EQ(pad_input_tensors(torch::ones({3}, at::kBool), 4).scalar_type(), at::kBool);
  EXPECT_EQ(find_batch_size(pad_input_tensors(everything(7, 0.0), 4)), 8);
  EXPECT_TRUE(contains(error_of([&] { pad_input_tensors(rows, 0); }), "got 0"));
}

TEST(NestedOps, Concatenate) {
  const std::vector<Everything> batches = {everything(2, 0.0), everything(1, 100.0),
                                           everything(3, 200.0)};
  const Everything joined = concatenate(batches);
  const auto parts = tensors_of(joined);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) {
      EXPECT_FALSE(tensors_of(batches[0])[i].defined());
      continue;
    }
    // Unordered maps may differ in their order, so the first value says which tensor it is.
    const double first = parts[i][0][0].item<double>();
    EXPECT_TRUE(
        parts[i].equal(torch::cat({torch::full({2, 2}, first), torch::full({1, 2}, first + 100),
                                   torch::full({3, 2}, first + 200)})));
  }
  EXPECT_EQ(std::get<0>(joined).source, "camera");
  EXPECT_EQ(std::get<1>(joined).second, (std::vector<int>{1, 2}));
  const std::vector<at::Tensor> wide = {torch::ones({2, 1}), torch::ones({2, 3})};
  EXPECT_EQ(concatenate(wide, 1).sizes(), (std::vector<int64_t>{2, 4}));
}

TEST(NestedOps, ConcatenateKeepsASingleBatch) {
  const at::Tensor scalar = torch::ones({});
  EXPECT_TRUE(concatenate(std::vector<at::Tensor>{scalar}).is_same(scalar));
}

TEST(NestedOps, ConcatenateLooksUpKeys) {
  // The same keys, inserted from both ends, so their internal order differs.
  std::unordered_map<int, at::Tensor> up;
  std::unordered_map<int, at::Tensor> down;
  for (int i = 0; i < 100; ++i) {
    up[i] = torch::full({1}, double(i));
    down[99 - i] = torch::full({1}, double(99 - i));
  }
  for (const auto& [key, tensor] : concatenate(std::vector{up, down})) {
    EXPECT_TRUE(tensor.equal(torch::full({2}, double(key))));
  }
}

struct Place {  // a key that can be hashed but not ordered
  int number = 0;
  bool operator==(const Place&) const = default;
};
struct HashPlace {
  std::size_t operator()(const Place& place) const {
    return static_cast<std::size_t>(place.number);
  }
};

TEST(NestedOps, ConcatenateLooksUpKeysWithoutAnOrder) {
  // With a different number of buckets the keys have a different order.
  std::unordered_map<Place, at::Tensor, HashPlace> few;
  std::unordered_map<Place, at::Tensor, HashPlace> many(1000);
  for (int i = 0; i < 100; ++i) {
    few[Place{i * 37}] = torch::full({1}, double(i));
    many[Place{(99 - i) * 37}] = torch::full({1}, double(99 - i));
  }
  for (const auto& [key, tensor] : concatenate(std::vector{few, many})) {
    EXPECT_TRUE(tensor.equal(torch::full({2}, double(key.number / 37))));
  }
}

TEST(NestedOps, ConcatenateRefusesWhatDiffers) {
  const auto refused = [](const auto& a, const auto& b) {
    return error_of([&] { concatenate(std::vector{a, b}); });
  };
  const at::Tensor one = torch::ones({1});
  using List = std::vector<at::Tensor>;
  using Map = std::map<std::string, at::Tensor>;
  using Optional = std::optional<at::Tensor>;
  EXPECT_TRUE(contains(refused(List{one}, List{one, one}), "the length of a list"));
  EXPECT_TRUE(contains(refused(Map{{"a", one}}, Map{{"b", one}}), "a key"));
  EXPECT_TRUE(contains(refused(Map{{"a", one}}, Map{{"a", one}, {"b", one}}), "number of keys"));
  EXPECT_TRUE(contains(refused(Optional{one}, Optional{}), "optional"));
  EXPECT_TRUE(contains(refused(one, at::Tensor()), "defined"));
  EXPECT_TRUE(contains(refused(std::pair{one, 1}, std::pair{one, 2}), "not a tensor"));
  EXPECT_TRUE(contains(refused(std::vector<bool>{true}, std::vector<bool>{false}), "not a tensor"));
  EXPECT_TRUE(contains(refused(std::vector<bool>{}, std::vector<bool>{false}), "length of a list"));
  EXPECT_TRUE(contains(error_of([] { concatenate(std::vector<at::Tensor>{}); }), "at least one"));
}

TEST(NestedOps, AutogradGoesThrough) {
  at::Tensor rows = torch::ones({3}).requires_grad_();
  const at::Tensor padded = pad_input_tensors(rows, 4, {.fill = Fill::first_rows});
  concatenate(std::vector{padded, slice_tensors(rows, 0, 1)}).sum().backward();
  EXPECT_TRUE(rows.grad().equal(torch::tensor({3.0F, 1.0F, 1.0F})));
}

struct Unseen {  // names no fields
  at::Tensor hidden;
};

template <class T>
concept HasBatchSize = requires(const T& data) {
  find_batch_size(data);
};
static_assert(HasBatchSize<Example> && !HasBatchSize<Unseen>);

}  // namespace
