// A resumed training run continues as if it had never stopped, bit for bit.
#include <nlohmann/json.hpp>

#include <accelerant/optim/optimizer_state.h>
#include <dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dist/join.h"
#include "support/expect_error.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/world.h"

namespace {

using namespace accelerant::dist;
using accelerant::NamedState;
using accelerant::StateDict;
using nlohmann::json;
namespace optim = accelerant::optim;

constexpr double kSmallBuckets = 0.008;  // MiB: one or two layers in each
constexpr int64_t kMoreSteps = 4;

// Which steps use the last layer of the model.
enum class Spare { always, alternately, on_rank_0, never };

struct Case {
  const char* name = "";
  DataParallelOptions options = {};
  Spare spare = Spare::always;
  int64_t forwards = 1;    // per step
  bool is_uneven = false;  // ranks have different numbers of batches
};

struct Net : torch::nn::Module {
  Net() {
    for (size_t i = 0; i < layers.size(); ++i) register_module(c10::str("layer", i), layers[i]);
    register_module("spare", spare);
  }

  at::Tensor forward(at::Tensor x, bool with_spare) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return with_spare ? x.slice(1, 0, 8) + spare(x) : x.slice(1, 0, 8);
  }

  std::vector<torch::nn::Linear> layers = {torch::nn::Linear(24, 40), torch::nn::Linear(40, 40),
                                           torch::nn::Linear(40, 40), torch::nn::Linear(40, 40),
                                           torch::nn::Linear(40, 16)};
  torch::nn::Linear spare{16, 8};
};

StateDict copies_of(const StateDict& tensors) {
  StateDict copies;
  for (const auto& item : tensors) copies.insert(item.key(), item.value().detach().clone());
  return copies;
}

// The state as it comes back from a file.
NamedState copy_of(const NamedState& state) {
  return {.values = json::parse(state.values->dump()), .tensors = copies_of(state.tensors)};
}

struct Saved {
  StateDict model = StateDict();
  NamedState optimizer = {};
  NamedState parallel = {};
};

struct Training {
  Training(const std::shared_ptr<World>& w, const Case& c, uint64_t seed) : world(w), test(c) {
    torch::manual_seed(seed);
    net = std::make_shared<Net>();
    std::vector<NamedParameter> parameters;
    for (const auto& item : net->named_parameters()) {
      parameters.push_back({.name = item.key(), .value = item.value()});
    }
    parallel = std::make_unique<DataParallel>(
        world, parameters, [] { return std::vector<at::Tensor>(); }, test.options);
    make_optimizer();
    names = optim::ParameterNames(net->named_parameters());
  }

  void backward(int64_t step) {
    const bool with_spare = test.spare == Spare::always ||
                            (test.spare == Spare::alternately && (step + rank()) % 2 == 0) ||
                            (test.spare == Spare::on_rank_0 && rank() == 0);
    for (int64_t i = 1; i <= test.forwards; ++i) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(
          static_cast<uint64_t>(1000 * step + 10 * i + rank()));
      const at::Tensor x = torch::randn({6, 24}, generator);
      parallel->before_forward(i == test.forwards);
      const auto outputs =
          parallel->after_forward({net->forward(x, with_spare)}, i == test.forwards);
      (outputs[0] - 1).square().mean().backward();
    }
    parallel->require_reduced();
  }

  // Gradients that are views of buckets stay views.
  void clear_gradients() {
    if (!test.options.gradient_as_bucket_view) return optimizer->zero_grad();
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.grad().zero_();
    }
  }

  void run(int64_t begin, int64_t end) {
    const auto loop = [&](int64_t last) {
      for (int64_t step = begin; step < last; ++step) {
        backward(step);
        optimizer->step();
        clear_gradients();
      }
    };
    if (!test.is_uneven) return loop(end);
    join_uneven({parallel.get()}, {}, [&] { loop(end + rank()); });
    // Ranks that ended earlier have the model of the last one, but not its optimizer.
    make_optimizer();
  }

  void make_optimizer() {
    optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), 0.01);
  }

  Saved save() const {
    return {.model = copies_of(net->named_parameters()),
            .optimizer = copy_of(optim::optimizer_state_dict(*optimizer, names)),
            .parallel = copy_of(parallel->state_dict())};
  }

  void load_all_but_parallel(const Saved& saved) {
    const torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) item.value().copy_(saved.model[item.key()]);
    optim::load_optimizer_state_dict(*optimizer, names, saved.optimizer);
  }

  void load(const Saved& saved) {
    load_all_but_parallel(saved);
    parallel->load_state_dict(saved.parallel);
  }

  std::shared_ptr<World> world;
  Case test;
  std::shared_ptr<Net> net;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  optim::ParameterNames names;
};

bool equal_models(const Training& left, const Training& right) {
  const auto a = left.net->parameters();
  const auto b = right.net->parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    if (hash_of(a[i]) != hash_of(b[i])) return false;
  }
  return true;
}

CommHookOptions hook(CommHook kind, CommWrapper wrapper = CommWrapper::no,
                     PowerSgdOptions power_sgd = {}) {
  power_sgd.matrix_approximation_rank = 2;
  power_sgd.start_iteration = 3;
  return {.hook = kind, .wrapper = wrapper, .power_sgd = power_sgd};
}

DataParallelOptions with_hook(const CommHookOptions& comm_hook) {
  return {.bucket_cap_mb = kSmallBuckets, .comm_hook = comm_hook};
}

std::vector<Case> plain_cases() {
  return {
      {"plain", {.bucket_cap_mb = kSmallBuckets}},
      {"accumulating", {.bucket_cap_mb = kSmallBuckets}, Spare::always, 3},
      {"uneven", {.bucket_cap_mb = kSmallBuckets}, Spare::always, 1, true},
      {"views", {.gradient_as_bucket_view = true, .bucket_cap_mb = kSmallBuckets}},
      {"unused",
       {.find_unused_parameters = true, .bucket_cap_mb = kSmallBuckets},
       Spare::alternately},
      {"unused with views",
       {.find_unused_parameters = true,
        .gradient_as_bucket_view = true,
        .bucket_cap_mb = kSmallBuckets},
       Spare::alternately},
      {"static graph", {.static_graph = true, .bucket_cap_mb = kSmallBuckets}},
      {"static graph, accumulating",
       {.static_graph = true, .bucket_cap_mb = kSmallBuckets},
       Spare::always,
       2},
      {"static graph with unused",
       {.static_graph = true, .bucket_cap_mb = kSmallBuckets},
       Spare::never},
      {"static graph with parameters of one rank",
       {.find_unused_parameters = true, .static_graph = true, .bucket_cap_mb = kSmallBuckets},
       Spare::on_rank_0},
      {"static graph with views",
       {.static_graph = true, .gradient_as_bucket_view = true, .bucket_cap_mb = kSmallBuckets}},
  };
}

std::vector<Case> hook_cases() {
  std::vector<Case> cases = {
      {"fp16", with_hook(hook(CommHook::fp16))},
      {"bf16", with_hook(hook(CommHook::bf16))},
      {"PowerSGD", with_hook(hook(CommHook::power_sgd))},
      {"PowerSGD in fp16", with_hook(hook(CommHook::power_sgd, CommWrapper::fp16))},
      {"PowerSGD, cold", with_hook(hook(CommHook::power_sgd, {}, {.warm_start = false}))},
      {"PowerSGD without feedback",
       with_hook(hook(CommHook::power_sgd, {}, {.use_error_feedback = false}))},
      {"PowerSGD of equal shapes",
       with_hook(hook(CommHook::power_sgd, {}, {.batch_tensors_with_same_shape = true}))},
      {"batched PowerSGD", with_hook(hook(CommHook::batched_power_sgd))},
      {"batched PowerSGD in bf16", with_hook(hook(CommHook::batched_power_sgd, CommWrapper::bf16))},
  };
  const CommHookOptions power = hook(CommHook::power_sgd);
  cases.push_back({"PowerSGD with uneven inputs", with_hook(power), Spare::always, 1, true});
  cases.push_back(
      {"PowerSGD and unused",
       {.find_unused_parameters = true, .bucket_cap_mb = kSmallBuckets, .comm_hook = power},
       Spare::alternately});
  cases.push_back({"PowerSGD in a static graph with views",
                   {.static_graph = true,
                    .gradient_as_bucket_view = true,
                    .bucket_cap_mb = kSmallBuckets,
                    .comm_hook = hook(CommHook::batched_power_sgd, CommWrapper::fp16)},
                   Spare::never});
  return cases;
}

// Saves after these numbers of steps: before and after buckets are rebuilt, and before and after
// PowerSGD starts.
void expect_to_go_on(const std::shared_ptr<World>& world, const Case& test,
                     const std::vector<int64_t>& saved_after) {
  for (const int64_t steps : saved_after) {
    SCOPED_TRACE(c10::str(test.name, ", saved after ", steps, " steps"));
    Training through(world, test, 1);
    through.run(0, steps);
    const Saved saved = through.save();
    through.run(steps, steps + kMoreSteps);
    expect_same_on_all_ranks(*world, through.net->parameters());
    EXPECT_GT(through.parallel->state_dict().values["buckets"].size(), 2U);

    Training fresh(world, test, 2);
    fresh.load(saved);
    EXPECT_EQ(fresh.parallel->state_dict().values, saved.parallel.values);
    fresh.run(steps, steps + kMoreSteps);
    EXPECT_TRUE(equal_models(fresh, through)) << "loaded into a new model";
    EXPECT_EQ(fresh.parallel->state_dict().values, through.parallel->state_dict().values);

    if (steps % 2 == 0) continue;
    Training used(world, test, 3);
    used.run(100, 103);
    used.load(saved);
    used.run(steps, steps + kMoreSteps);
    EXPECT_TRUE(equal_models(used, through)) << "loaded into a model that was trained";
  }
}

void expect_all_to_go_on(const std::vector<Case>& cases, const std::vector<int64_t>& saved_after) {
  const auto world = join_world();
  for (const Case& test : cases) expect_to_go_on(world, test, saved_after);
}

RANK_TEST_WITH(DataParallelState, GoesOnBitForBit, {.num_ranks = 3, .timeout = 180}) {
  expect_all_to_go_on(plain_cases(), {0, 1, 2, 5});
}

RANK_TEST_WITH(DataParallelState, GoesOnBitForBitWithFour, {.num_ranks = 4, .timeout = 180}) {
  expect_all_to_go_on(plain_cases(), {1, 4});
}

RANK_TEST_WITH(DataParallelState, HooksGoOnBitForBit, {.num_ranks = 3, .timeout = 180}) {
  expect_all_to_go_on(hook_cases(), {1, 2, 5});
}

RANK_TEST_WITH(DataParallelState, HooksGoOnBitForBitWithFour, {.num_ranks = 4, .timeout = 180}) {
  expect_all_to_go_on(hook_cases(), {2, 5});
}

// The state must make a difference; otherwise the tests above would check nothing.
RANK_TEST(DataParallelState, WithoutItTheResultIsAnother, 3) {
  const auto world = join_world();
  for (const CommHookOptions& comm_hook :
       {CommHookOptions(), hook(CommHook::power_sgd), hook(CommHook::batched_power_sgd)}) {
    const Case test{.options = with_hook(comm_hook)};
    Training through(world, test, 1);
    through.run(0, 5);
    const Saved saved = through.save();
    through.run(5, 5 + kMoreSteps);
    Training resumed(world, test, 1);
    resumed.load_all_but_parallel(saved);
    resumed.run(5, 5 + kMoreSteps);
    EXPECT_FALSE(equal_models(resumed, through));
    if (comm_hook.hook == CommHook::no) continue;
    // Each saved tensor matters.
    for (const char* field : {"error", "q"}) {
      Saved damaged{saved.model, saved.optimizer, copy_of(saved.parallel)};
      int64_t cleared = 0;
      for (auto& item : damaged.parallel.tensors) {
        if (!item.key().ends_with(c10::str(".", field))) continue;
        item.value().fill_(0.5);
        ++cleared;
      }
      EXPECT_GT(cleared, 1) << field;
      Training from_damaged(world, test, 1);
      from_damaged.load(damaged);
      from_damaged.run(5, 5 + kMoreSteps);
      EXPECT_FALSE(equal_models(from_damaged, through)) << field;
    }
  }
}

// With options other than when it was saved, training continues and all processes agree.
RANK_TEST(DataParallelState, LoadsWithOtherOptions, 3) {
  const auto world = join_world();
  const DataParallelOptions all_options[] = {
      {.bucket_cap_mb = kSmallBuckets},
      {.find_unused_parameters = true, .bucket_cap_mb = kSmallBuckets / 2},
      {.static_graph = true, .bucket_cap_mb = kSmallBuckets},
      {.gradient_as_bucket_view = true, .comm_hook = hook(CommHook::fp16)},
      {.static_graph = true,
       .bucket_cap_mb = kSmallBuckets,
       .comm_hook = hook(CommHook::power_sgd)},
      with_hook(hook(CommHook::batched_power_sgd, CommWrapper::fp16)),
  };
  for (const DataParallelOptions& from : all_options) {
    const Case first{.options = from};
    Training through(world, first, 1);
    through.run(0, 5);
    const Saved saved = through.save();
    for (const DataParallelOptions& to : all_options) {
      const Case second{.options = to};
      Training resumed(world, second, 2);
      resumed.load(saved);
      EXPECT_EQ(resumed.parallel->state_dict().values["buckets"], saved.parallel.values["buckets"]);
      resumed.run(5, 10);
      expect_same_on_all_ranks(*world, resumed.net->parameters());
    }
  }
}

RANK_TEST(DataParallelState, OfAnotherModelIsRefused, 2) {
  const auto world = join_world();
  const Case test{.options = with_hook(hook(CommHook::power_sgd))};
  Training training(world, test, 1);
  training.run(0, 5);
  const NamedState good = copy_of(training.parallel->state_dict());
  const auto refused = [&](const char* part, const std::function<void(json&)>& change) {
    NamedState bad = copy_of(good);
    change(*bad.values);
    EXPECT_TRUE(contains(whole_error_of([&] { training.parallel->load_state_dict(bad); }), part));
    const NamedState now = training.parallel->state_dict();
    EXPECT_EQ(now.values, good.values);
    for (const auto& item : good.tensors) EXPECT_TRUE(now.tensors[item.key()].equal(item.value()));
  };
  refused("a list without spare.bias", [](json& values) {
    for (json& bucket : values["buckets"]) {
      for (size_t i = 0; i < bucket.size(); ++i) {
        if (bucket[i] == "spare.bias") bucket.erase(i--);
      }
    }
  });
  refused("also other.weight",
          [](json& values) { values["buckets"][0].push_back("other.weight"); });
  refused("duplicates of layer0.weight",
          [](json& values) { values["buckets"][0].push_back("layer0.weight"); });
  refused("an empty bucket", [](json& values) { values["buckets"].push_back(json::array()); });
  refused("a key 'buckets'", [](json& values) { values.erase("buckets"); });
  refused("'buckets' to be names of parameters", [](json& values) { values["buckets"][0] = 7; });
  refused("'rebuilt'", [](json& values) { values["rebuilt"] = "yes"; });
  refused("a list without layer0.bias", [](json& values) { values["order"] = {"spare.bias"}; });
  refused("a key 'uses'", [](json& values) { values["static_graph"] = json::object(); });
  refused("'iteration'", [](json& values) { values["comm_hook"]["iteration"] = -1; });
  refused("'random_draws'", [](json& values) { values["comm_hook"].erase("random_draws"); });
  refused("'buckets'", [](json& values) { values["comm_hook"]["buckets"] = {-3}; });
  refused("an object", [](json& values) { values = 3; });
}

// Nothing can be saved after an incomplete iteration; loading a state recovers from it.
RANK_TEST(DataParallelState, AfterAnIterationThatLeftGradientsOut, 2) {
  const auto world = join_world();
  const Case test{.options = with_hook(hook(CommHook::power_sgd))};
  Training through(world, test, 1);
  through.run(0, 5);
  const Saved saved = through.save();

  Training broken(world, test, 2);
  broken.test.spare = Spare::never;
  const char* const problem = "has no gradients for some parameters";
  EXPECT_TRUE(contains(error_of([&] { broken.backward(0); }), problem));
  EXPECT_TRUE(contains(error_of([&] { broken.parallel->state_dict(); }), problem));
  broken.load(saved);
  broken.net->zero_grad();
  broken.test.spare = Spare::always;
  broken.run(5, 9);
  through.run(5, 9);
  EXPECT_TRUE(equal_models(broken, through));
}

}  // namespace
