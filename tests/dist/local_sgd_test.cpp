#include <accelerant/dist/local_sgd.h>
#include <accelerant/dist/world.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/world.h"

namespace {

using accelerant::dist::average_parameters;
using accelerant::dist::Environment;
using accelerant::dist::LocalSgd;
using accelerant::dist::World;

RANK_TEST(AverageParameters, OfSeveralTypes, 3) {
  const auto world = join_world();
  torch::manual_seed(1);
  const std::vector<at::ScalarType> types = {torch::kFloat, torch::kDouble, torch::kBFloat16,
                                             torch::kHalf};
  std::vector<at::Tensor> own;
  std::vector<at::Tensor> means;
  for (int i = 0; i < 12; ++i) {
    const auto all = torch::randn({3, i % 3, 5}).to(types[static_cast<size_t>(i) % types.size()]);
    means.push_back(all.to(torch::kDouble).mean(0).to(all.dtype()));
    own.push_back(all[world->rank()].clone().set_requires_grad(i % 2 == 0));
  }
  own.push_back(torch::full({}, static_cast<double>(world->rank())));  // a scalar
  means.push_back(torch::tensor(1.0F));
  own.push_back(torch::arange(6.0).view({2, 3}).t() * world->rank());  // not contiguous
  means.push_back(torch::arange(6.0).view({2, 3}).t());
  average_parameters(*world, own);
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(torch::allclose(own[i], means[i], 1e-6, 1e-6)) << i << own[i] << means[i];
  }
  expect_same_on_all_ranks(*world, own);
}

// Each process simulates all ranks of local SGD and compares its own rank with the simulation.
RANK_TEST(LocalSgd, IsStepsOnOneProcessAndMeans, 3) {
  const auto world = join_world();
  constexpr int kSteps = 8;
  constexpr int kBetween = 3;
  const auto gradient = [](const at::Tensor& weights, int64_t rank, int step) {
    return weights * static_cast<double>(rank + 1) + step;
  };
  std::vector<at::Tensor> expected(3, torch::ones({4}, torch::kDouble));
  const auto own = torch::ones({4}, torch::kDouble).set_requires_grad(true);
  int stopped = 0;
  {
    LocalSgd local_sgd(world, {own}, {.steps = kBetween}, [&] {
      ++stopped;
      return std::shared_ptr<void>(&stopped, [](int* count) { --*count; });
    });
    EXPECT_TRUE(local_sgd.is_active());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_EQ(stopped, 1);
      const torch::NoGradGuard no_grad;
      for (int64_t rank = 0; rank < 3; ++rank) {
        auto& weights = expected[static_cast<size_t>(rank)];
        weights = weights - 0.1 * gradient(weights, rank, step);
      }
      if ((step + 1) % kBetween == 0) {
        expected.assign(3, torch::stack(expected).mean(0));
      }
      own.sub_(0.1 * gradient(own, world->rank(), step));
      local_sgd.step();
      EXPECT_TRUE(torch::allclose(own, expected[static_cast<size_t>(world->rank())], 1e-12))
          << step;
    }
    EXPECT_EQ(local_sgd.num_steps(), kSteps);
  }
  EXPECT_EQ(stopped, 0);
  EXPECT_TRUE(torch::allclose(own, torch::stack(expected).mean(0), 1e-12));
  expect_same_on_all_ranks(*world, {own});
}

RANK_TEST(LocalSgd, DoesNothingWhenNotEnabled, 2) {
  const auto world = join_world();
  const auto own = torch::full({2}, static_cast<double>(world->rank()));
  {
    LocalSgd local_sgd(world, {own}, {.steps = 1, .enabled = false}, [] {
      ADD_FAILURE() << "the exchange was stopped";
      return nullptr;
    });
    EXPECT_FALSE(local_sgd.is_active());
    local_sgd.step();
  }
  EXPECT_TRUE(torch::equal(own, torch::full({2}, static_cast<double>(world->rank()))));
  average_parameters(*world, {own});
  expect_same_on_all_ranks(*world, {own});
}

// The other ranks may not fail at the same time, so there would be nothing to average with.
RANK_TEST(LocalSgd, AnExceptionDoesNotWaitForOthers, 2) {
  const auto world = join_world();
  const auto own = torch::full({2}, static_cast<double>(world->rank()));
  try {
    LocalSgd local_sgd(world, {own}, {.steps = 4});
    local_sgd.step();
    if (world->rank() == 1) throw std::runtime_error("bad batch");
    throw std::logic_error("another");
  } catch (const std::exception&) {
  }
  EXPECT_TRUE(torch::equal(own, torch::full({2}, static_cast<double>(world->rank()))));
  average_parameters(*world, {own});
  expect_same_on_all_ranks(*world, {own});
}

TEST(LocalSgd, OneProcess) {
  const auto world = World::join(Environment{});
  const auto own = torch::ones({2});
  LocalSgd local_sgd(world, {own}, {.steps = 1});
  EXPECT_FALSE(local_sgd.is_active());
  local_sgd.step();
  local_sgd.finish();
  EXPECT_TRUE(torch::equal(own, torch::ones({2})));
  EXPECT_TRUE(contains(error_of([&] { LocalSgd bad(world, {own}, {.steps = 0}); }), "steps"));
}

}  // namespace
