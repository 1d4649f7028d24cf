// Batches as bytes and back.
#include <accelerant/data/detail/packing.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <thread>

#include "support/expect_error.h"

namespace {

namespace data = accelerant::data;

struct Part {
  torch::Tensor values;
  std::optional<torch::Tensor> mask;
  int64_t not_named = 5;
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.values);
    visit(self.mask);
  }
};

struct Whole {
  std::map<std::string, std::vector<torch::Tensor>> named;
  std::tuple<Part, std::array<double, 2>, std::pair<bool, std::string>> rest;
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.named);
    visit(self.rest);
  }
};

TEST(Packing, KeepsStructureAndValues) {
  Whole whole;
  whole.named["a"] = {torch::arange(6).view({2, 3}), torch::ones({0, 4}), torch::Tensor()};
  whole.named["long key"] = {};
  auto& [part, numbers, pair] = whole.rest;
  part.values = torch::randn({3, 2, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  part.mask = torch::tensor({true, false, true});
  part.not_named = 9;
  numbers = {1.5, -2.0};
  pair = {true, std::string("text\0with zero", 14)};
  const auto same = data::unpack<Whole>(data::pack(whole));
  ASSERT_EQ(same.named.size(), 2U);
  const auto& list = same.named.at("a");
  ASSERT_EQ(list.size(), 3U);
  EXPECT_TRUE(list[0].equal(whole.named["a"][0]));
  EXPECT_EQ(list[1].sizes(), (torch::IntArrayRef{0, 4}));
  EXPECT_FALSE(list[2].defined());
  EXPECT_TRUE(same.named.at("long key").empty());
  const auto& [other, other_numbers, other_pair] = same.rest;
  EXPECT_TRUE(other.values.equal(part.values));
  EXPECT_EQ(other.values.strides(), part.values.strides());
  EXPECT_TRUE(other.mask->equal(*part.mask));
  EXPECT_EQ(other.not_named, 5);  // only named fields travel
  EXPECT_EQ(other_numbers, numbers);
  EXPECT_EQ(other_pair, pair);
}

TEST(Packing, TensorsOfEveryKind) {
  const auto base = torch::arange(24).view({4, 6});
  const auto complex = torch::complex(torch::randn({3}), torch::randn({3}));
  const std::vector<torch::Tensor> tensors = {
      base.slice(1, 0, 6, 2),
      base.t(),
      torch::tensor(3.0),
      torch::ones({3}, torch::kBFloat16),
      torch::ones({2, 2}, torch::kBool),
      torch::ones({1}).expand({5}),
      complex.conj(),
      torch::randn({3}, torch::requires_grad()),
  };
  const auto same = data::unpack<std::vector<torch::Tensor>>(data::pack(tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(same[i].scalar_type(), tensors[i].scalar_type()) << i;
    EXPECT_TRUE(same[i].equal(tensors[i].detach())) << i;
    EXPECT_FALSE(same[i].requires_grad());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(same[i].data_ptr()) % 64, 0U) << i;
  }
}

TEST(Packing, TensorsOutliveTheBlockAndAreTheirOwn) {
  torch::Tensor first;
  {
    auto both = data::unpack<std::vector<torch::Tensor>>(
        data::pack(std::vector{torch::zeros({100}), torch::ones({100})}));
    first = both[0];
    both[1].zero_();
  }
  first.add_(1);
  EXPECT_EQ(first.sum().item<double>(), 100.0);
  EXPECT_EQ(first.storage().nbytes(), 400U);
}

struct Opaque {
  std::shared_ptr<int> value;
};
struct NamesOpaque {
  Opaque opaque;
  static void visit_fields(auto& self, auto&& visit) { visit(self.opaque); }
};

TEST(Packing, Refusals) {
  static_assert(!data::Packable<Opaque>);
  static_assert(!data::Packable<std::vector<Opaque>>);
  static_assert(data::Packable<std::vector<bool>>);
  EXPECT_TRUE(contains(error_of([] { data::pack(NamesOpaque{}); }), "cannot be sent"));
  EXPECT_TRUE(contains(error_of([] { data::pack(torch::eye(3).to_sparse()); }), "dense"));
  EXPECT_TRUE(
      contains(error_of([] { data::unpack<std::array<int64_t, 4>>(data::pack(int64_t{3})); }),
               "cannot be read"));
}

}  // namespace
