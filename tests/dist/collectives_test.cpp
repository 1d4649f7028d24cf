#include <accelerant/dist/collectives.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/world.h"

using namespace accelerant::dist;  // NOLINT: what is tested

// Named, because several test files may be compiled as one.
namespace collectives_test {

const std::vector<at::ScalarType> kTypes = {
    at::kBool,  at::kByte,   at::kChar,   at::kShort,        at::kInt,
    at::kLong,  at::kUInt16, at::kUInt32, at::kHalf,         at::kBFloat16,
    at::kFloat, at::kDouble, at::kUInt64, at::kComplexFloat, at::kComplexDouble};

// Small numbers that every type holds exactly; each rank has different ones.
at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type, int64_t of_rank) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (torch::arange(count, at::kLong) * 3 + of_rank * 2).remainder(5).view(shape).to(type);
}

// numbers() of all ranks, joined.
at::Tensor all_numbers(at::IntArrayRef shape, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (int other = 0; other < num_ranks(); ++other) {
    const at::Tensor part = numbers(shape, at::kLong, other);
    parts.push_back(part.dim() == 0 ? part.view({1}) : part);
  }
  return torch::cat(parts).to(type);
}

::testing::AssertionResult same(const at::Tensor& left, const at::Tensor& right) {
  const bool alike = left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes();
  const auto comparable = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kUInt64 ? tensor.view(at::kLong)
           : tensor.is_complex()               ? tensor.to(at::kComplexDouble)
                                               : tensor.to(at::kDouble);
  };
  if (alike && torch::equal(comparable(left), comparable(right))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << left.toString() << left.sizes() << " and " << right.toString() << right.sizes();
}

void gather_matrix() {
  const auto world = join_world();
  const std::vector<std::vector<int64_t>> shapes = {{},        {1}, {4},    {3, 2},
                                                    {2, 1, 3}, {0}, {0, 3}, {2, 0}};
  for (const at::ScalarType type : kTypes) {
    std::vector<at::Tensor> data;
    for (const auto& shape : shapes) data.push_back(numbers(shape, type, rank()));
    const std::vector<at::Tensor> together = gather(*world, data);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_TRUE(same(together[i], all_numbers(shapes[i], type)));
      EXPECT_TRUE(same(gather(*world, data[i]), together[i]));
    }
  }
}

RANK_TEST(Collectives, GatherOfEveryTypeAndShapeByTwo, 2) { gather_matrix(); }
RANK_TEST(Collectives, GatherOfEveryTypeAndShapeByThree, 3) { gather_matrix(); }

RANK_TEST(Collectives, GatherOfWhatIsNotContiguous, 4) {
  const auto world = join_world();
  const at::Tensor wide = numbers({6, 4}, at::kFloat, rank());
  const at::Tensor all = all_numbers({6, 4}, at::kFloat);
  EXPECT_TRUE(torch::equal(gather(*world, wide.slice(1, 0, 3)), all.slice(1, 0, 3)));
  EXPECT_TRUE(torch::equal(gather(*world, wide.slice(0, 0, 6, 2)), all.slice(0, 0, 24, 2)));
  const at::Tensor columns = gather(*world, wide.t());
  EXPECT_EQ(columns.sizes(), at::IntArrayRef({16, 6}));
  EXPECT_TRUE(torch::equal(columns.slice(0, 4 * rank(), 4 * rank() + 4), wide.t()));
  EXPECT_TRUE(torch::equal(gather(*world, torch::full({1}, rank()).expand({2, 3})).sum(),
                           torch::tensor(6 * 6)));
  const at::Tensor turned = torch::complex(wide, wide + 1).conj();
  EXPECT_TRUE(torch::equal(torch::imag(gather(*world, turned)), -all - 1));
}

struct Output {
  at::Tensor logits;
  std::optional<at::Tensor> loss;
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.logits);
    visit(self.loss);
  }
};

RANK_TEST(Collectives, GatherKeepsTheStructure, 2) {
  const auto world = join_world();
  const at::Tensor own = torch::full({2}, rank());
  const at::Tensor both = torch::tensor({0, 0, 1, 1});
  using Nested = std::tuple<std::map<std::string, std::vector<at::Tensor>>,
                            std::pair<at::Tensor, std::optional<at::Tensor>>, Output>;
  const Nested nested{{{"a", {own, own + 2}}, {"b", {}}}, {own + 4, {}}, {own + 6, own[0]}};
  const Nested result = gather(*world, nested);
  const auto& [map, pair, output] = result;
  EXPECT_EQ(map.size(), 2U);
  EXPECT_TRUE(map.at("b").empty());
  EXPECT_TRUE(torch::equal(map.at("a")[1], both + 2));
  EXPECT_TRUE(torch::equal(pair.first, both + 4));
  EXPECT_FALSE(pair.second.has_value());
  EXPECT_TRUE(torch::equal(output.logits, both + 6));
  EXPECT_TRUE(torch::equal(*output.loss, torch::tensor({0, 1})));

  // The order of a hash table depends on how it was filled.
  std::unordered_map<std::string, at::Tensor> table;
  for (int i = 0; i < 20; ++i) {
    const int key = rank() == 0 ? i : 19 - i;
    table[std::to_string(key)] = torch::full({1}, key);
  }
  for (const auto& [key, tensor] : gather(*world, table)) {
    EXPECT_TRUE(torch::equal(tensor, torch::full({2}, std::stoi(key)))) << key;
  }

  const std::vector<at::Tensor> with_undefined = gather(*world, std::vector{own, at::Tensor()});
  EXPECT_FALSE(with_undefined[1].defined());
  EXPECT_TRUE(gather(*world, std::vector<at::Tensor>()).empty());
}

RANK_TEST(Collectives, LargeTensorsBesideSmallOnes, 2) {
  const auto world = join_world();
  const std::vector<at::Tensor> data = {torch::full({3}, rank()),
                                        torch::full({1 << 19}, rank() + 1.5),
                                        torch::full({2}, rank() + 7, at::kChar)};
  const auto all = gather(*world, data);
  const auto sums = reduce(*world, data);
  const auto first = broadcast(*world, std::vector{data[0].clone(), data[1].clone()});
  EXPECT_TRUE(torch::equal(all[0], torch::tensor({0, 0, 0, 1, 1, 1})));
  EXPECT_EQ(all[1].sum().item<double>(), (1.5 + 2.5) * (1 << 19));
  EXPECT_EQ(all[2].scalar_type(), at::kChar);
  EXPECT_EQ(sums[1].max().item<double>(), 4.0);
  EXPECT_EQ(sums[2][0].item<int>(), 15);
  EXPECT_EQ(first[1].max().item<double>(), 1.5);
}

RANK_TEST(Collectives, DifferentShapesAreAnErrorOnAll, 3) {
  const auto world = join_world();
  const auto error = whole_error_of([&] { gather(*world, torch::ones({rank() + 2, 4})); });
  for (const char* part : {"rank 0: gather", "float32[2, 4]", "float32[3, 4]", "float32[4, 4]",
                           "pad_across_processes"}) {
    EXPECT_TRUE(contains(error, part));
  }
  const auto types = whole_error_of(
      [&] { gather(*world, torch::ones({2}).to(rank() == 1 ? at::kHalf : at::kFloat)); });
  EXPECT_TRUE(contains(types, "rank 1: gather (call 2) float16[2]"));
  const auto keys = whole_error_of([&] {
    gather(*world, std::map<std::string, at::Tensor>{{rank() == 0 ? "x" : "y", torch::ones(2)}});
  });
  EXPECT_TRUE(contains(keys, "rank 2: gather (call 3) {y: float32[2]}"));
  const auto reduced = whole_error_of([&] { reduce(*world, torch::ones({rank()})); });
  EXPECT_TRUE(contains(reduced, "rank 2: reduce (call 4) float32[2]"));
  // A description that is too long for the first message.
  std::vector<at::Tensor> many(100, torch::ones({3, rank() == 2 ? 5 : 4}));
  EXPECT_TRUE(contains(whole_error_of([&] { broadcast(*world, many); }), "float32[3, 5]"));
  // All are still in step.
  EXPECT_EQ(gather(*world, torch::ones({1})).numel(), 3);
}

void reduce_matrix() {
  const auto world = join_world();
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {5}, {2, 3}, {0}}) {
      const at::Tensor own = numbers(shape, type, rank());
      const at::Tensor before = own.clone();
      std::vector<at::Tensor> parts;
      for (int other = 0; other < num_ranks(); ++other) {
        parts.push_back(numbers(shape, type, other).to(type == at::kBool ? at::kLong : type));
      }
      const bool is_complex = c10::isComplexType(type);
      const at::Tensor all = torch::stack(parts).to(is_complex ? at::kComplexDouble : at::kDouble);
      const at::Tensor sum = all.sum(0);
      if (type == at::kBool) {
        EXPECT_TRUE(same(reduce(*world, own), sum > 0));
        EXPECT_TRUE(
            same(reduce(*world, own, {.reduction = Reduction::product}), sum == num_ranks()));
        EXPECT_TRUE(same(reduce(*world, own, {.reduction = Reduction::mean}),
                         (sum / num_ranks()).to(at::kFloat)));
        continue;
      }
      EXPECT_TRUE(same(reduce(*world, own), sum.to(type)));
      const auto mean = reduce(*world, own, {.reduction = Reduction::mean});
      const bool is_integer = c10::isIntegralType(type, false);
      EXPECT_EQ(mean.scalar_type(), is_integer ? at::kFloat : type);
      EXPECT_TRUE(torch::allclose(mean.to(all.scalar_type()), sum / num_ranks(), 1e-2, 1e-3));
      if (is_complex) continue;
      EXPECT_TRUE(same(reduce(*world, own, {.reduction = Reduction::max}), all.amax(0).to(type)));
      EXPECT_TRUE(same(reduce(*world, own, {.reduction = Reduction::min}), all.amin(0).to(type)));
      EXPECT_TRUE(
          same(reduce(*world, own, {.reduction = Reduction::product}), all.prod(0).to(type)));
      EXPECT_TRUE(same(own, before));
    }
  }
}

RANK_TEST(Collectives, ReduceOfEveryTypeByOne, 1) { reduce_matrix(); }
RANK_TEST(Collectives, ReduceOfEveryTypeByThree, 3) { reduce_matrix(); }

RANK_TEST(Collectives, ReduceAtTheLimitsOfTypes, 2) {
  const auto world = join_world();
  const auto one = [](at::ScalarType type, int64_t value) {
    return torch::full({1}, value, at::kLong).to(type);
  };
  // 120 and 10 do not fit together in int8: the mean is exact, the sum wraps around.
  const at::Tensor bytes = one(at::kChar, rank() == 0 ? 120 : 10);
  EXPECT_EQ(reduce(*world, bytes, {.reduction = Reduction::mean}).item<float>(), 65.0F);
  EXPECT_EQ(reduce(*world, bytes).item<int64_t>(), -126);
  const int64_t large = (int64_t{1} << 60) + 1;
  EXPECT_EQ(reduce(*world, one(at::kLong, large)).item<int64_t>(), 2 * large);
  // Beyond the signed range: as unsigned, -1 is the largest number.
  const at::Tensor bits = one(at::kLong, rank() == 0 ? -1 : 5).view(at::kUInt64);
  EXPECT_EQ(reduce(*world, bits, {.reduction = Reduction::max}).view(at::kLong).item<int64_t>(),
            -1);
  EXPECT_EQ(reduce(*world, bits, {.reduction = Reduction::min}).view(at::kLong).item<int64_t>(), 5);
  EXPECT_EQ(reduce(*world, one(at::kInt, 3), {.scale = 0.5}).item<float>(), 3.0F);
  EXPECT_EQ(reduce(*world, torch::ones({1}), {.scale = 0.25}).item<float>(), 0.5F);
  const auto refused = error_of(
      [&] { reduce(*world, torch::ones({1}, at::kComplexFloat), {.reduction = Reduction::max}); });
  EXPECT_TRUE(contains(refused, "real numbers"));
  const auto mixed = whole_error_of([&] {
    reduce(*world, torch::ones(1), {.reduction = rank() == 0 ? Reduction::max : Reduction::min});
  });
  EXPECT_TRUE(contains(mixed, "different arguments"));
}

RANK_TEST(Collectives, BroadcastIsInPlace, 3) {
  const auto world = join_world();
  for (const at::ScalarType type : kTypes) {
    at::Tensor plain = numbers({2, 3}, type, rank());
    const at::Tensor wide = numbers({4, 3}, type, rank());
    const at::Tensor columns = wide.t();
    const at::Tensor scalar = numbers({}, type, rank());
    const at::Tensor nothing = numbers({0}, type, rank());
    const auto result = broadcast(*world, std::vector{plain, columns, scalar, nothing}, 2);
    EXPECT_TRUE(same(plain, numbers({2, 3}, type, 2)));
    EXPECT_TRUE(same(wide, numbers({4, 3}, type, 2)));
    EXPECT_TRUE(same(scalar, numbers({}, type, 2)));
    EXPECT_TRUE(result[0].is_same(plain));
  }
  const at::Tensor parameter = torch::full({2}, rank() + 1.0).requires_grad_();
  broadcast(*world, parameter);
  EXPECT_EQ(parameter[0].item<double>(), 1.0);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(contains(error_of([&] { broadcast(*world, parameter, 3); }), "a rank from 0 to 2"));
}

RANK_TEST(Collectives, PadAcrossProcesses, 3) {
  const auto world = join_world();
  const at::Tensor own = torch::full({rank() + 1, 2}, rank() + 1);
  const auto at_end = pad_across_processes(*world, own, {.pad_index = -100});
  EXPECT_EQ(at_end.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(torch::equal(at_end.slice(0, 0, rank() + 1), own));
  EXPECT_EQ((at_end == -100).sum().item<int64_t>(), 2 * (2 - rank()));
  const auto in_front = pad_across_processes(*world, own, {.pad_first = true});
  EXPECT_TRUE(torch::equal(in_front.slice(0, 2 - rank()), own));
  const auto from_behind = pad_across_processes(*world, own.t(), {.dim = -1});
  EXPECT_EQ(from_behind.sizes(), at::IntArrayRef({2, 3}));
  for (const int64_t outside : {2, -3, 7}) {
    EXPECT_TRUE(pad_across_processes(*world, own, {.dim = outside}).is_same(own));
  }
  // The type stays the same on all ranks; Accelerate turns bool into an integer on some.
  const auto flags = pad_across_processes(*world, torch::ones({rank() + 1}, at::kBool));
  EXPECT_EQ(flags.scalar_type(), at::kBool);
  EXPECT_EQ(gather(*world, flags).sum().item<int64_t>(), 6);
  const auto many = pad_across_processes(
      *world, std::map<std::string, at::Tensor>{{"x", own}, {"loss", torch::tensor(1.0)}});
  EXPECT_EQ(many.at("x").size(0), 3);
  EXPECT_EQ(many.at("loss").dim(), 0);
  const auto empty = pad_across_processes(*world, torch::zeros({rank() == 1 ? 2 : 0, 3}));
  EXPECT_EQ(empty.sizes(), at::IntArrayRef({2, 3}));
  const auto error = whole_error_of([&] {
    pad_across_processes(*world, rank() == 0 ? torch::ones({2}) : torch::ones({2, 2}));
  });
  EXPECT_TRUE(contains(error, "rank 1: pad_across_processes"));
}

RANK_TEST(Collectives, InPlaceAndAny, 2) {
  const auto world = join_world();
  const at::Tensor flags = torch::tensor({static_cast<float>(rank()), 3.0F});
  all_reduce_(*world, flags, Reduction::max);
  EXPECT_EQ(flags[0].item<float>(), 1.0F);
  const at::Tensor columns = torch::full({2, 2}, rank() + 1.0).t().slice(0, 0, 1);
  all_reduce_control_(*world, columns, Reduction::mean);
  EXPECT_EQ(columns[0][1].item<double>(), 1.5);
  EXPECT_TRUE(any(*world, rank() == 1));
  EXPECT_FALSE(any(*world, false));
}

TEST(Collectives, OneProcessGivesThingsBackAsTheyAre) {
  const auto world = World::join({});
  const at::Tensor scalar = torch::tensor(2);
  EXPECT_TRUE(gather(*world, scalar).is_same(scalar));
  EXPECT_TRUE(broadcast(*world, scalar).is_same(scalar));
  EXPECT_TRUE(pad_across_processes(*world, scalar).is_same(scalar));
  const at::Tensor copy = reduce(*world, scalar);
  EXPECT_FALSE(copy.is_same(scalar));
  EXPECT_EQ(copy.scalar_type(), at::kLong);
  EXPECT_EQ(reduce(*world, scalar, {.reduction = Reduction::mean}).scalar_type(), at::kFloat);
  EXPECT_TRUE(any(*world, true));
  EXPECT_THROW(broadcast(*world, scalar, 1), accelerant::Error);
}

}  // namespace collectives_test
