// The Reducer exchanges compressed gradients on several ranks.
#include <ATen/autocast_mode.h>
#include <accelerant/dist/data_parallel_options.h>
#include <accelerant/dist/world.h>
#include <dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "dist/comm_hook.h"
#include "dist/groups.h"
#include "dist/join.h"
#include "dist/world_access.h"
#include "support/expect_error.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/world.h"

namespace {

using namespace accelerant::dist;

// A data-parallel model with a hook. Each test computes its own loss.
struct Parallel {
  Parallel(std::shared_ptr<World> w, std::vector<at::Tensor> p, const CommHookOptions& hook,
           std::optional<double> bucket_cap_mb = std::nullopt)
      : world(std::move(w)), parameters(std::move(p)) {
    std::vector<NamedParameter> named;
    for (const auto& parameter : parameters) {
      named.push_back({.name = std::to_string(named.size()), .value = parameter});
    }
    model = std::make_unique<DataParallel>(
        world, named, [] { return std::vector<at::Tensor>(); },
        DataParallelOptions{.bucket_cap_mb = bucket_cap_mb});
    if (auto made = make_comm_hook(hook, accelerant::dist::WorldAccess::groups(*world).data))
      model->register_hook(std::move(made));
  }

  template <class Loss>
  void backward(Loss&& loss) {
    for (auto& parameter : parameters) parameter.mutable_grad().reset();
    model->before_forward(true);
    model->after_forward({loss()}, true).front().backward();
    model->require_reduced();
  }

  std::shared_ptr<World> world;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<DataParallel> model;
};

struct Training {
  CommHookOptions hook = {};
  at::ScalarType type = torch::kDouble;
  int64_t steps = 8;
  std::optional<double> bucket_cap_mb = std::nullopt;
};

// The parameters after some steps of gradient descent. Every rank has its own batches.
std::vector<at::Tensor> train(const std::shared_ptr<World>& world, const Training& training) {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(24, 20), torch::nn::Tanh(), torch::nn::Linear(20, 20),
                            torch::nn::Tanh(), torch::nn::Linear(20, 20), torch::nn::Tanh(),
                            torch::nn::Linear(20, 3));
  net->to(world->device(), training.type);
  Parallel parallel(world, net->parameters(), training.hook, training.bucket_cap_mb);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  torch::manual_seed(100 + world->rank());
  for (int64_t step = 0; step < training.steps; ++step) {
    const auto input = torch::randn({6, 24}, training.type).to(world->device());
    const auto target = torch::randn({6, 3}, training.type).to(world->device());
    parallel.backward([&] { return torch::mse_loss(net->forward(input), target); });
    sgd.step();
  }
  expect_same_on_all_ranks(*world, net->parameters());
  return net->parameters();
}

double distance(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    largest = std::max(largest, (left[i] - right[i]).abs().max().item<double>());
  }
  return largest;
}

constexpr double kSmallBuckets = 0.002;  // MiB: one or two parameters in each

void compare_sixteen_bits(const std::shared_ptr<World>& world) {
  const auto plain = train(world, {});
  const struct {
    CommHookOptions hook;
    double tolerance;
  } cases[] = {{{.hook = CommHook::fp16}, 1e-4},
               {{.hook = CommHook::bf16}, 1e-3},
               {{.hook = CommHook::fp16, .wrapper = CommWrapper::bf16}, 2e-3},
               {{.hook = CommHook::bf16, .wrapper = CommWrapper::fp16}, 2e-3}};
  for (const auto& [hook, tolerance] : cases) {
    for (const std::optional<double> cap :
         {std::optional<double>(), std::optional(kSmallBuckets)}) {
      const auto compressed = train(world, {.hook = hook, .bucket_cap_mb = cap});
      const double error = distance(plain, compressed);
      EXPECT_LT(error, tolerance) << static_cast<int>(hook.hook);
      EXPECT_GT(error, 1e-8) << "nothing was compressed";
    }
  }
}

// An approximation of full rank has no error, whatever the random numbers. All tensors are
// compressed.
void compare_full_rank(const std::shared_ptr<World>& world) {
  const auto plain = train(world, {.steps = 12});
  PowerSgdOptions full{
      .matrix_approximation_rank = 100, .start_iteration = 2, .min_compression_rate = 0.01};
  for (const CommHook hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    for (const bool warm_start : {true, false}) {
      for (const std::optional<double> cap :
           {std::optional<double>(), std::optional(kSmallBuckets)}) {
        full.warm_start = warm_start;
        full.use_error_feedback = warm_start;
        full.batch_tensors_with_same_shape = warm_start;
        const auto compressed = train(
            world, {.hook = {.hook = hook, .power_sgd = full}, .steps = 12, .bucket_cap_mb = cap});
        EXPECT_LT(distance(plain, compressed), 1e-9)
            << static_cast<int>(hook) << warm_start << cap.value_or(0);
      }
    }
  }
}

RANK_TEST(CommHook, SixteenBitsAreNearThePlainAverage, 2) { compare_sixteen_bits(join_world()); }

RANK_TEST(CommHook, PowerSgdOfFullRankIsThePlainAverage, 3) { compare_full_rank(join_world()); }

RANK_TEST(CommHook, OnAGpu, 2) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto world = World::join(Environment::detect(), {.backend = Backend::gloo},
                                 torch::Device(torch::kCUDA, 0));
  compare_sixteen_bits(world);
  compare_full_rank(world);
}

RANK_TEST(CommHook, TensorsOfOneShapeCanBeCompressedTogether, 2) {
  const auto world = join_world();
  Training training{.hook = {.hook = CommHook::power_sgd,
                             .power_sgd = {.matrix_approximation_rank = 3, .start_iteration = 2}}};
  const auto apart = train(world, training);
  training.hook.power_sgd.batch_tensors_with_same_shape = true;
  const auto together = train(world, training);
  // The random matrices are drawn in one piece instead of several, so the approximations differ.
  EXPECT_GT(distance(train(world, {}), together), 1e-6) << "nothing was compressed";
  for (const auto& parameter : together) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  EXPECT_LT(distance(apart, together), 0.1);
}

// There are two buckets already in the first iteration, and there the Reducer gives them the same
// index.
RANK_TEST(CommHook, AStaticGraphOfTwoTypes, 2) {
  const auto world = join_world();
  const auto a = torch::ones({8, 8}).set_requires_grad(true);
  const auto b = torch::ones({8, 8}, torch::kDouble).set_requires_grad(true);
  for (const CommHook hook : {CommHook::fp16, CommHook::power_sgd}) {
    DataParallel model(
        world, {{.name = "a", .value = a}, {.name = "b", .value = b}},
        [] { return std::vector<at::Tensor>(); },
        {.static_graph = true, .comm_hook = {.hook = hook, .power_sgd = {.start_iteration = 2}}});
    for (int step = 0; step < 4; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      model.before_forward(true);
      const auto loss = a.sum() * (world->rank() + 1) + b.sum() * (world->rank() + 3);
      model.after_forward({loss}, true).front().backward();
      EXPECT_TRUE(torch::allclose(a.grad(), torch::full({8, 8}, 1.5)));
      EXPECT_TRUE(torch::allclose(b.grad(), torch::full({8, 8}, 3.5, torch::kDouble)));
    }
  }
}

// A process without inputs takes part in all exchanges of the hook.
RANK_TEST(CommHook, UnevenInputs, 2) {
  const auto world = join_world();
  for (const CommHook hook : {CommHook::fp16, CommHook::power_sgd, CommHook::batched_power_sgd}) {
    torch::manual_seed(9);
    torch::nn::Linear net(12, 10);
    Parallel parallel(world, net->parameters(), {.hook = hook, .power_sgd = {.start_iteration = 2}},
                      kSmallBuckets / 4);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    join_uneven({parallel.model.get()}, {}, [&] {
      for (int64_t step = 0; step < 4 + 3 * world->rank(); ++step) {
        parallel.backward([&] { return net->forward(torch::randn({3, 12})).square().mean(); });
        sgd.step();
      }
    });
    expect_same_on_all_ranks(*world, net->parameters());
  }
}

// The gradient is the same in all steps. With error feedback, what an approximation of rank 1
// leaves out arrives in later steps.
double error_of_mean_gradient(const std::shared_ptr<World>& world, CommHook hook, bool feedback) {
  torch::manual_seed(3);
  const auto weights = torch::zeros({12, 10}).set_requires_grad(true);
  const auto slopes = torch::randn({2, 12, 10});
  Parallel parallel(
      world, {weights},
      {.hook = hook, .power_sgd = {.start_iteration = 2, .use_error_feedback = feedback}});
  auto sum = torch::zeros_like(weights);
  constexpr int kSteps = 60;
  for (int step = 0; step < 2 + kSteps; ++step) {
    parallel.backward([&] { return (weights * slopes[world->rank()]).sum(); });
    if (step >= 2) sum += weights.grad();
    expect_same_on_all_ranks(*world, {weights.grad()});
  }
  const auto mean = slopes.mean(0);
  return ((sum / kSteps - mean).norm() / mean.norm()).item<double>();
}

RANK_TEST(CommHook, WhatPowerSgdLeavesOutComesLater, 2) {
  const auto world = join_world();
  for (const CommHook hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    EXPECT_LT(error_of_mean_gradient(world, hook, true), 0.15);
    EXPECT_GT(error_of_mean_gradient(world, hook, false), 0.5);
  }
}

// In Python a gradient of zeros gives nan or, with an epsilon, a matrix that stays 0 forever. After
// an overflow, all later steps are nan.
RANK_TEST(CommHook, PowerSgdRecoversFromZerosAndOverflow, 2) {
  const auto world = join_world();
  for (const CommHook hook : {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    for (const int64_t columns : {1, 4}) {  // Gram-Schmidt and QR
      // A square matrix, so that a whole bucket is a matrix of rank 1 too.
      const auto weights = torch::zeros({12, 12}).set_requires_grad(true);
      Parallel parallel(world, {weights},
                        {.hook = hook,
                         .power_sgd = {.matrix_approximation_rank = columns,
                                       .start_iteration = 2,
                                       .min_compression_rate = 0.1}});
      const auto norm_of_gradient = [&](double slope) {
        parallel.backward([&] { return (weights * slope).sum(); });
        return weights.grad().norm().item<double>();
      };
      const double one = std::sqrt(144.0);
      for (int step = 0; step < 3; ++step) EXPECT_NEAR(norm_of_gradient(1), one, 1e-3);
      for (int step = 0; step < 2; ++step) EXPECT_NEAR(norm_of_gradient(0), 0, 1e-3);
      for (int step = 0; step < 2; ++step) EXPECT_NEAR(norm_of_gradient(1), one, 1e-3);
      const double infinity = std::numeric_limits<double>::infinity();
      EXPECT_FALSE(std::isfinite(norm_of_gradient(world->rank() == 1 ? infinity : 1)));
      for (int step = 0; step < 2; ++step) EXPECT_NEAR(norm_of_gradient(1), one, 1e-3);
      expect_same_on_all_ranks(*world, {weights.grad()});
    }
  }
}

RANK_TEST(CommHook, BackwardUnderAutocastStaysExact, 2) {
  const auto world = join_world();
  const auto weights = torch::zeros({64, 64}).set_requires_grad(true);
  Parallel parallel(world, {weights},
                    {.hook = CommHook::power_sgd,
                     .power_sgd = {.matrix_approximation_rank = 1, .start_iteration = 2}});
  torch::manual_seed(1);
  const auto slope = torch::randn({64, 1}).mm(torch::randn({1, 64}));  // of rank 1: no error
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (int step = 0; step < 4; ++step) {
    parallel.backward([&] { return (weights * slope).sum(); });
    EXPECT_TRUE(torch::allclose(weights.grad(), slope, 1e-4, 1e-4));
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  expect_same_on_all_ranks(*world, {weights.grad()});
}

TEST(CommHook, SparseGradientsAreRefused) {
  const auto hook = make_comm_hook({.hook = CommHook::fp16}, nullptr);
  c10d::GradBucket bucket(0, 1, torch::zeros({2, 2}).to_sparse(), {}, {}, {}, {}, std::nullopt);
  EXPECT_TRUE(contains(error_of([&] { hook->runHook(bucket); }), "use CommHook::no"));
  EXPECT_EQ(make_comm_hook({}, nullptr), nullptr);
}

TEST(CommHook, OptionsThatCannotBe) {
  const auto error = [](const CommHookOptions& options) {
    return error_of([&] { check(options); });
  };
  const auto power = [&](const PowerSgdOptions& options) {
    return error({.hook = CommHook::power_sgd, .power_sgd = options});
  };
  EXPECT_TRUE(contains(error({.wrapper = CommWrapper::fp16}), "needs a comm hook to wrap"));
  EXPECT_TRUE(contains(power({.matrix_approximation_rank = 0}), "matrix_approximation_rank"));
  EXPECT_TRUE(contains(power({.start_iteration = 1}), "at least 2"));
  EXPECT_TRUE(contains(power({.start_iteration = 1, .use_error_feedback = false}), "at least 2"));
  EXPECT_TRUE(contains(power({.min_compression_rate = 0}), "min_compression_rate"));
  EXPECT_TRUE(contains(power({.orthogonalization_epsilon = -1}), "orthogonalization_epsilon"));
  EXPECT_TRUE(contains(power({.random_seed = int64_t{1} << 32}), "random_seed"));
  EXPECT_TRUE(
      contains(error({.hook = CommHook::batched_power_sgd, .power_sgd = {.start_iteration = -1}}),
               "start_iteration"));
  check({.hook = CommHook::power_sgd,
         .power_sgd = {.start_iteration = 0, .use_error_feedback = false, .warm_start = false}});
  check({.hook = CommHook::fp16, .power_sgd = {.matrix_approximation_rank = 0}});  // not used
}

}  // namespace
