// Offloaded models compute, train and save what ordinary ones do, bit for bit.
#include <accelerant/checkpoint/models.h>
#include <accelerant/paging/empty_weights.h>
#include <accelerant/paging/offload.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "paging/offload/offloaded_model.h"
#include "paging/random_models.h"
#include "paging/residency.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/random_seed.h"
#include "support/same_module.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant;
using models::LanguageModel;
using models::make_model;
using models::random_map;
using models::random_shape;
using models::Shape;
using models::some_tokens;

class Offload : public OnDevice {
 protected:
  // Also where atomic additions would add in any order.
  void SetUp() override {
    OnDevice::SetUp();
    if (on_cuda()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  std::vector<Placement> places() const {
    std::vector<Placement> all = {"cpu", "disk"};
    if (on_cuda()) all.emplace_back(0);
    return all;
  }
};
ON_EVERY_DEVICE(Offload);

struct Outcome {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Outcome outcome_of(LanguageModel& net, const at::Tensor& tokens) {
  net->zero_grad();
  Outcome outcome;
  outcome.output = net->forward(tokens);
  outcome.output.square().mean().backward();
  for (const at::Tensor& parameter : net->parameters()) {
    outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().cpu() : at::Tensor());
  }
  outcome.output = outcome.output.detach().cpu();
  return outcome;
}

void expect_equal(const Outcome& expected, const Outcome& got) {
  EXPECT_TRUE(torch::equal(expected.output, got.output));
  ASSERT_EQ(expected.gradients.size(), got.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    ASSERT_EQ(expected.gradients[i].defined(), got.gradients[i].defined());
    if (!expected.gradients[i].defined()) continue;
    EXPECT_TRUE(torch::equal(expected.gradients[i], got.gradients[i])) << i;
  }
}

// A budget of nothing, of some units or of the default.
std::optional<MemorySize> random_budget(std::mt19937& random) {
  const int64_t choice = std::uniform_int_distribution<int64_t>(0, 5)(random);
  if (choice == 5) return std::nullopt;
  return MemorySize(choice * (int64_t{2} << 20));
}

TEST_P(Offload, RandomMapsComputeTheSame) {
  const uint32_t seed = random_seed();
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE("model " + std::to_string(i));
    const Shape shape = random_shape(random);
    const uint64_t values = random();
    LanguageModel plain = make_model(shape, values);
    LanguageModel net = make_model(shape, values);
    const at::Tensor tokens = some_tokens().to(device());
    plain->to(device());
    const TempFolder folder;
    const DeviceMap map = random_map(*net, places(), random);
    SCOPED_TRACE(map.text());
    dispatch_model(net, map,
                   {.main_device = device(),
                    .offload_folder = folder.path(),
                    .offload_buffers = std::bernoulli_distribution(0.5)(random),
                    .budget = random_budget(random),
                    .prefetch = std::uniform_int_distribution<int64_t>(0, 2)(random),
                    .zero_copy = std::bernoulli_distribution(0.5)(random),
                    .preload_module_classes = std::bernoulli_distribution(0.3)(random)
                                                  ? std::vector<std::string>{"Block"}
                                                  : std::vector<std::string>{}});
    for (int step = 0; step < 2; ++step) {
      expect_equal(outcome_of(plain, tokens), outcome_of(net, tokens));
    }
    verify_offload(net);
    undo_offload(net);
    EXPECT_FALSE(has_offloaded_params(net));
    net->to(torch::kCPU);
    plain->to(torch::kCPU);
    expect_same_module(*plain, *net);
  }
}

TEST_P(Offload, LoadsAnEmptyModelToWhereTheMapSays) {
  const uint32_t seed = random_seed();
  std::mt19937 random(seed);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE("model " + std::to_string(i));
    const Shape shape = random_shape(random);
    LanguageModel plain = make_model(shape, random());
    const TempFolder folder;
    save_model(plain, folder.path("model"),
               {.max_shard_size = i % 2 == 0 ? "10GB" : "1MB", .safe_serialization = i % 4 != 3});
    LanguageModel net = init_empty_weights([&] { return make_model(shape, 1); });
    EXPECT_TRUE(net->words->weight.is_meta());
    const DeviceMap map = random_map(*net, places(), random);
    SCOPED_TRACE(map.text());
    load_checkpoint_and_dispatch(
        net, folder.path("model"),
        {.device_map = map,
         .offload_folder = i % 4 == 3 ? folder.path("offload") : std::string(),
         .main_device = device(),
         .budget = random_budget(random),
         .zero_copy = std::bernoulli_distribution(0.5)(random)});
    plain->to(device());
    const at::Tensor tokens = some_tokens().to(device());
    expect_equal(outcome_of(plain, tokens), outcome_of(net, tokens));
  }
}

TEST_P(Offload, MappedWeightsAreThoseOfTheCheckpointItself) {
  LanguageModel plain = make_model({}, 3);
  const TempFolder folder;
  save_model(plain, folder.path("model"));
  LanguageModel net = init_empty_weights([&] { return make_model({}, 3); });
  load_checkpoint_and_dispatch(net, folder.path("model"),
                               {.device_map = {{"", "disk"}}, .main_device = device()});
  const OffloadStatistics statistics = offload_statistics(net);
  EXPECT_GT(statistics.units, 0);
  if (!on_cuda()) {
    EXPECT_EQ(statistics.in_place_bytes, statistics.offloaded_bytes);
    EXPECT_EQ(statistics.resident_bytes, 0);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens().to(device());
  plain->to(device());
  EXPECT_TRUE(torch::equal(plain->forward(tokens), net->forward(tokens)));
}

TEST_P(Offload, ConvertsTypesOnTheWay) {
  LanguageModel plain = make_model({}, 3);
  const TempFolder folder;
  save_model(plain, folder.path("model"));
  plain->to(device(), torch::kBFloat16);
  LanguageModel net = init_empty_weights([&] { return make_model({}, 3); });
  EXPECT_TRUE(contains(whole_error_of([&] {
                         load_checkpoint_and_dispatch(
                             net, folder.path("model"),
                             {.device_map = {{"", "disk"}}, .dtype = torch::kBFloat16});
                       }),
                       "please pass along an `offload_folder`"));
  EXPECT_EQ(net->head.scalar_type(), torch::kFloat) << "an error changes nothing";
  load_checkpoint_and_dispatch(net, folder.path("model"),
                               {.device_map = {{"blocks", "cpu"}, {"", "disk"}},
                                .offload_folder = folder.path("offload"),
                                .dtype = torch::kBFloat16,
                                .main_device = device()});
  EXPECT_EQ(net->head.scalar_type(), torch::kBFloat16);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens().to(device());
  EXPECT_TRUE(torch::equal(plain->forward(tokens), net->forward(tokens)));
}

TEST_P(Offload, TiedWeightsStayTied) {
  LanguageModel net = make_model({.is_tied = true}, 5);
  LanguageModel plain = make_model({.is_tied = true}, 5);
  const TempFolder folder;
  // The first name decides.
  dispatch_model(net, {{"words", "cpu"}, {"head", "disk"}, {"", "cpu"}},
                 {.main_device = device(), .offload_folder = folder.path()});
  EXPECT_TRUE(net->head.is_same(net->words->weight));
  EXPECT_TRUE(paging::is_paged(net->head));
  plain->to(device());
  const at::Tensor tokens = some_tokens().to(device());
  expect_equal(outcome_of(plain, tokens), outcome_of(net, tokens));
  undo_offload(net);
  EXPECT_TRUE(net->head.is_same(net->words->weight));
}

TEST_P(Offload, TrainsInHostMemoryAndFromFiles) {
  for (const bool on_disk : {false, true}) {
    for (const bool zero_copy : {false, true}) {
      SCOPED_TRACE(on_disk ? "disk" : "host");
      LanguageModel plain = make_model({.is_tied = true}, 8);
      LanguageModel net = make_model({.is_tied = true}, 8);
      plain->to(device());
      const TempFolder folder;
      const OffloadOptions options{
          .execution_device = device(), .budget = 0, .zero_copy = zero_copy};
      // What holds the parameters keeps holding them.
      torch::optim::AdamW optimizer(net->parameters(), 1e-2);
      torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2);
      if (on_disk) {
        disk_offload(net, folder.path(), options);
      } else {
        cpu_offload(net, options);
      }
      for (int step = 0; step < 3; ++step) {
        const at::Tensor tokens = some_tokens().to(device());
        expect_equal(outcome_of(plain, tokens), outcome_of(net, tokens));
        plain_optimizer.step();
        optimizer.step();
      }
      undo_offload(net, torch::kCPU);
      plain->to(torch::kCPU);
      expect_same_module(*plain, *net);
    }
  }
}

TEST_P(Offload, FilesAreNeverWrittenTo) {
  LanguageModel net = make_model({}, 8);
  const TempFolder folder;
  disk_offload(net, folder.path(), {.execution_device = device()});
  const std::string file = folder.path("offload.safetensors");
  const std::string before = TempFolder::content_of(file);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.add_(1);
  }
  undo_offload(net, torch::kCPU);
  EXPECT_TRUE(TempFolder::content_of(file) == before);
  LanguageModel same = make_model({}, 8);
  EXPECT_TRUE(torch::equal(net->head, same->head + 1));
}

TEST_P(Offload, SavesAndLoadsTheSameFilesAsAnOrdinaryModel) {
  const Shape shape{.is_tied = true};
  LanguageModel plain = make_model(shape, 9);
  LanguageModel net = make_model(shape, 9);
  const TempFolder folder;
  dispatch_model(net, {{"blocks.0", "cpu"}, {"", "disk"}},
                 {.main_device = device(),
                  .offload_folder = folder.path("offload"),
                  .budget = 0,
                  .zero_copy = false});
  save_model(plain, folder.path("plain"));
  save_model(net, folder.path("offloaded"));
  EXPECT_TRUE(TempFolder::content_of(folder.path("plain/model.safetensors")) ==
              TempFolder::content_of(folder.path("offloaded/model.safetensors")));
  save_model(net, folder.path("torch"), {.safe_serialization = false});
  save_model(net, folder.path("half"), {.dtype = torch::kBFloat16});

  LanguageModel other = make_model(shape, 10);
  save_model(other, folder.path("other"));
  load_checkpoint_in_model(net, folder.path("other"));
  EXPECT_TRUE(paging::is_paged(net->head));
  undo_offload(net, torch::kCPU);
  expect_same_module(*other, *net);
  load_checkpoint_in_model(net, folder.path("torch"));
  expect_same_module(*plain, *net);
}

TEST_P(Offload, UndoneModelsAreOrdinary) {
  LanguageModel net = make_model({}, 11);
  LanguageModel plain = make_model({}, 11);
  cpu_offload(net, {.execution_device = device(), .zero_copy = false});
  EXPECT_TRUE(has_offloaded_params(net));
  EXPECT_TRUE(has_offloaded_params(*net->blocks));
  undo_offload(net);
  EXPECT_FALSE(has_offloaded_params(net));
  EXPECT_EQ(net->head.device(), c10::Device(torch::kCPU));
  EXPECT_EQ(net->blocks[0]->as<models::BlockImpl>()->norm->weight.device(),
            c10::Device(torch::kCPU));
  undo_offload(net);  // does nothing
  EXPECT_NE(net->head.data_ptr(), nullptr);
  net->to(torch::kDouble);
  plain->to(torch::kDouble);
  expect_same_module(*plain, *net);
  net->to(torch::kFloat);
  cpu_offload(net, {.execution_device = device()});  // once more
  EXPECT_TRUE(has_offloaded_params(net));
}

TEST_P(Offload, WhatOffloadsAModelEndsWithIt) {
  LanguageModel net = make_model({}, 12);
  cpu_offload(net, {.execution_device = device(), .zero_copy = false});
  const std::weak_ptr<paging::OffloadedModel> weak = paging::OffloadedModel::of(*net).at(0);
  EXPECT_FALSE(weak.expired());
  at::Tensor kept = net->head;
  const at::Tensor value = kept.detach().clone();
  net = nullptr;
  EXPECT_FALSE(weak.expired()) << "a parameter still needs it";
  EXPECT_TRUE(torch::equal(kept, value));
  kept.reset();
  EXPECT_TRUE(weak.expired());
}

TEST_P(Offload, ModelsTakeTurns) {
  LanguageModel first = make_model({}, 13);
  LanguageModel second = make_model({}, 14);
  LanguageModel plain_first = make_model({}, 13);
  LanguageModel plain_second = make_model({}, 14);
  plain_first->to(device());
  plain_second->to(device());
  const OffloadHook first_hook =
      cpu_offload_with_hook(first, {.execution_device = device(), .zero_copy = false});
  const OffloadHook second_hook = cpu_offload_with_hook(
      second, {.execution_device = device(), .prev_module_hook = first_hook, .zero_copy = false});
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens().to(device());
  const auto resident = [](const LanguageModel& net) {
    return offload_statistics(net).resident_bytes;
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(torch::equal(plain_first->forward(tokens), first->forward(tokens)));
    EXPECT_GT(resident(first), 0);
    EXPECT_TRUE(torch::equal(plain_second->forward(tokens), second->forward(tokens)));
    EXPECT_EQ(resident(first), 0) << "moved back when the second one was used";
    EXPECT_GT(resident(second), 0);
  }
  const uint64_t fetches = offload_statistics(second).fetches;
  EXPECT_TRUE(torch::equal(plain_second->forward(tokens), second->forward(tokens)));
  EXPECT_EQ(offload_statistics(second).fetches, fetches) << "stays until it is moved back";
  second_hook.offload();
  EXPECT_EQ(resident(second), 0);
  second_hook.remove();
  EXPECT_FALSE(has_offloaded_params(second));
  first = nullptr;
  first_hook.offload();  // the model is gone
}

TEST_P(Offload, AHookCanBeCalledAgainForWhatWasInUse) {
  LanguageModel net = make_model({}, 13);
  const OffloadHook hook =
      cpu_offload_with_hook(net, {.execution_device = device(), .zero_copy = false});
  {
    const auto here = align_module_device(net, std::nullopt, {.recurse = true});
    hook.offload();
    EXPECT_GT(offload_statistics(net).resident_bytes, 0);
  }
  hook.offload();
  EXPECT_EQ(offload_statistics(net).resident_bytes, 0);
}

TEST_P(Offload, ModelsWithOnlyBuffersAreUndone) {
  struct TableImpl : torch::nn::Module {
    TableImpl() { table = register_buffer("table", torch::randn({400, 400})); }
    at::Tensor table;
  };
  const auto net = std::make_shared<TableImpl>();
  const at::Tensor before = net->table.clone();
  cpu_offload(*net, {.execution_device = device(), .offload_buffers = true});
  EXPECT_TRUE(paging::is_paged(net->table));
  EXPECT_TRUE(has_offloaded_params(*net));
  EXPECT_GT(offload_statistics(*net).offloaded_bytes, 0);
  EXPECT_TRUE(contains(whole_error_of([&] { cpu_offload(*net); }), "undo_offload() first"));
  undo_offload(*net);
  EXPECT_FALSE(paging::is_paged(net->table));
  EXPECT_TRUE(net->table.is_cpu());
  EXPECT_TRUE(torch::equal(net->table, before));
  cpu_offload(*net, {.execution_device = device(), .offload_buffers = true});
  net->to(torch::kDouble);
  EXPECT_TRUE(contains(whole_error_of([&] { verify_offload(*net); }), "table"));
}

TEST_P(Offload, BuffersAreOnTheDeviceUnlessAsked) {
  for (const bool offload_buffers : {false, true}) {
    LanguageModel net = make_model({.has_batch_norm = true}, 15);
    LanguageModel plain = make_model({.has_batch_norm = true}, 15);
    plain->to(device());
    cpu_offload(net, {.execution_device = device(),
                      .offload_buffers = offload_buffers,
                      .budget = 0,
                      .zero_copy = false});
    EXPECT_EQ(paging::is_paged(net->table), offload_buffers);
    EXPECT_FALSE(paging::is_paged(net->scale));
    EXPECT_EQ(net->scale.device().type(), GetParam());
    EXPECT_EQ(net->table.device().type(), GetParam());
    const at::Tensor tokens = some_tokens().to(device());
    for (int step = 0; step < 2; ++step) {  // running statistics change
      expect_equal(outcome_of(plain, tokens), outcome_of(net, tokens));
    }
    undo_offload(net, torch::kCPU);
    plain->to(torch::kCPU);
    expect_same_module(*plain, *net);
  }
}

TEST_P(Offload, StaysWithinTheBudget) {
  LanguageModel net = make_model({.blocks = 4}, 16);
  cpu_offload(net, {.execution_device = device(), .zero_copy = false});
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 3; ++i) net->forward(some_tokens().to(device()));
  const OffloadStatistics statistics = offload_statistics(net);
  EXPECT_LE(statistics.peak_bytes, statistics.budget_bytes);
  EXPECT_LT(statistics.budget_bytes, statistics.offloaded_bytes);
  EXPECT_GT(statistics.fetches, statistics.units);
}

TEST_P(Offload, ModelsWithoutListsAreDividedToo) {
  struct LayersImpl : torch::nn::Module {
    LayersImpl() {
      for (int i = 0; i < 20; ++i) {
        layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(600, 600)));
      }
    }
    std::vector<torch::nn::Linear> layers;
  };
  const auto net = std::make_shared<LayersImpl>();
  cpu_offload(*net, {.execution_device = device(), .zero_copy = false});
  const at::NoGradGuard no_grad;
  at::Tensor x = torch::ones({1, 600}, options());
  for (auto& layer : net->layers) x = layer(x);
  const OffloadStatistics statistics = offload_statistics(*net);
  EXPECT_EQ(statistics.units, 20);
  EXPECT_LE(statistics.peak_bytes, statistics.offloaded_bytes / 6);
}

TEST_P(Offload, FetchingFarAheadIsABudgetForAllUnits) {
  LanguageModel net = make_model({.blocks = 4}, 16);
  cpu_offload(net, {.execution_device = device(), .prefetch = INT64_MAX, .zero_copy = false});
  const OffloadStatistics statistics = offload_statistics(net);
  EXPECT_GE(statistics.budget_bytes, statistics.offloaded_bytes);
  EXPECT_LE(statistics.budget_bytes, statistics.offloaded_bytes * (2 + statistics.units));
}

}  // namespace
