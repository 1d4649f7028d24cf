// save_state and load_state in one process: what is restored, numbers and limits, and what is
// refused. resume/resume_test.py checks that a training resumes to the last bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerator/saved_training.h"
#include "core/files.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::entries_of;
using accelerant::StateDict;

void flip_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(SaveState, GivesEverythingBack) {
  const TempFolder folder;
  Training first(in_project(folder));
  for (int i = 0; i < 3; ++i) first.step();
  torch::manual_seed(5);
  const std::string path = first.accelerator.save_state();
  EXPECT_EQ(path, folder.path("checkpoints/checkpoint_0"));
  const at::Tensor drawn = torch::rand({4});
  const at::Tensor weight = first.net->weight.detach().clone();
  first.step();

  Training second(in_project(folder));
  const auto loaded = second.accelerator.load_state();
  EXPECT_EQ(loaded.path, path);
  EXPECT_EQ(loaded.updates, 3);
  EXPECT_TRUE(torch::rand({4}).equal(drawn));
  EXPECT_TRUE(second.net->weight.equal(weight));
  EXPECT_DOUBLE_EQ(rate_of(second), 0.05);
  second.step();
  EXPECT_TRUE(second.net->weight.equal(first.net->weight));
  EXPECT_DOUBLE_EQ(rate_of(second), rate_of(first));
}

TEST(SaveState, NumbersGoOnAndOldOnesGo) {
  const TempFolder folder;
  auto options = in_project(folder);
  options.project.total_limit = 2;
  {
    Training training(options);
    for (int i = 0; i < 6; ++i) training.accelerator.save_state();
  }
  Training training(options);
  for (int i = 6; i < 11; ++i) training.accelerator.save_state({.async = i % 2 == 0});
  training.accelerator.wait_for_saves();
  EXPECT_EQ(entries_of(folder.path("checkpoints")),
            (std::vector<std::string>{"checkpoint_10", "checkpoint_9"}));

  options.project.iteration = 40;
  Training other(options);
  EXPECT_EQ(other.accelerator.save_state(), folder.path("checkpoints/checkpoint_40"));
}

TEST(SaveState, AFolderOfItsOwnIsReplaced) {
  const TempFolder folder;
  Training training(on_cpu());
  training.accelerator.save_state(folder.path("last"));
  training.step();
  const at::Tensor weight = training.net->weight.detach().clone();
  training.accelerator.save_state(folder.path("last"));
  training.step();
  training.accelerator.load_state(folder.path("last"));
  EXPECT_TRUE(training.net->weight.equal(weight));
  EXPECT_EQ(entries_of(folder.path()), (std::vector<std::string>{"last"}));
}

TEST(SaveState, ADamagedOneIsPassedOver) {
  const TempFolder folder;
  Training training(in_project(folder));
  training.accelerator.save_state();
  const at::Tensor weight = training.net->weight.detach().clone();
  training.step();
  const std::string newest = training.accelerator.save_state();
  flip_byte(newest + "/model.safetensors");
  const GatheredLog log;
  EXPECT_EQ(training.accelerator.load_state().path, folder.path("checkpoints/checkpoint_0"));
  EXPECT_TRUE(training.net->weight.equal(weight));
  EXPECT_NE(log.text().find(newest), std::string::npos) << log.text();

  expect_error([&] { training.accelerator.load_state(newest); }, {newest, "model.safetensors"});
}

TEST(SaveState, WhatDoesNotFitChangesNothing) {
  const TempFolder folder;
  Training narrow(in_project(folder));
  narrow.step();
  narrow.accelerator.save_state();

  Training wide(in_project(folder), 4);
  wide.step();
  const at::Tensor weight = wide.net->weight.detach().clone();
  const double rate = rate_of(wide);
  expect_error([&] { wide.accelerator.load_state(); }, {"weight", "[4, 2]", "[3, 2]"});
  EXPECT_TRUE(wide.net->weight.equal(weight));
  EXPECT_DOUBLE_EQ(rate_of(wide), rate);

  Accelerator fewer(in_project(folder));
  torch::nn::Linear net(2, 3);
  const auto model = fewer.prepare(net);
  expect_error([&] { fewer.load_state(); },
               {"as many optimizers as in the checkpoint (1)", "0 prepared", "in the same order"});

  narrow.accelerator.register_for_checkpointing("extra", narrow.loader);
  expect_error([&] { narrow.accelerator.load_state(); }, {"none", "'extra'"});
}

TEST(SaveState, NeedsAPlace) {
  Training training(on_cpu());
  expect_error([&] { training.accelerator.save_state(); }, {"no folder", "project.dir"});
  expect_error([&] { training.accelerator.load_state(); }, {"no folder", "project.dir"});
  expect_error([&] { training.accelerator.load_state("/nowhere"); }, {"/nowhere", "no checkpoint"});
  auto options = on_cpu();
  options.project.resume = "auto";
  expect_error([&] { Accelerator{options}; }, {"\"auto\" needs a project"});
  options.project = {.dir = "somewhere", .total_limit = 0};
  expect_error([&] { Accelerator{options}; }, {"total_limit", "at least 1"});
}

TEST(SaveState, NotBetweenBackwardAndStep) {
  const TempFolder folder;
  Training training(in_project(folder));
  auto window = training.accelerator.accumulate(training.model);
  training.accelerator.backward(training.model(torch::ones({1, 2})).sum());
  expect_error([&] { training.accelerator.save_state(); }, {"between backward() and step()"});
  training.optimizer.step();
  EXPECT_NO_THROW(training.accelerator.save_state());
}

TEST(SaveState, AnAsynchronousOneIsOfItsMoment) {
  const TempFolder folder;
  Training training(in_project(folder));
  training.step();
  const at::Tensor weight = training.net->weight.detach().clone();
  training.accelerator.save_state({.async = true});
  for (int i = 0; i < 20; ++i) training.step();
  training.accelerator.wait_for_saves();
  training.accelerator.load_state();
  EXPECT_TRUE(training.net->weight.equal(weight));
}

TEST(SaveState, ErrorsOfAsynchronousOnesComeLater) {
  const TempFolder folder;
  folder.write("file", "");
  Training training(on_cpu());
  const std::string impossible = folder.path("file") + "/checkpoint";
  expect_error([&] { training.accelerator.save_state(impossible); }, {impossible});
  training.accelerator.save_state(impossible, {.async = true});
  training.accelerator.save_state(folder.path("good"), {.async = true});
  expect_error([&] { training.accelerator.save_state(folder.path("never"), {.async = true}); },
               {impossible});
  EXPECT_NO_THROW(training.accelerator.wait_for_saves());
  EXPECT_EQ(entries_of(folder.path()), (std::vector<std::string>{"file", "good"}));

  training.accelerator.save_state(impossible, {.async = true});
  expect_error([&] { training.accelerator.wait_for_saves(); }, {impossible});

  const GatheredLog log;
  {
    Training ending(on_cpu());
    ending.accelerator.save_state(impossible, {.async = true});
  }
  EXPECT_NE(log.text().find(impossible), std::string::npos) << log.text();
}

TEST(SaveState, OnAGpuCopiesAreOfTheirMomentToo) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  const TempFolder folder;
  auto options = scaled_options();
  options.cpu = false;
  options.project = {.dir = folder.path(), .resume = "no"};
  Accelerator accelerator(options);
  torch::nn::Linear net(1024, 2048);
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto step = [&] {
    accelerator.backward(model(torch::rand({64, 1024}, accelerator.device())).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  for (const bool async : {false, true, true, true}) {
    accelerator.save_state({.async = async});
    const at::Tensor weight = net->weight.detach().clone();
    for (int i = 0; i < 5; ++i) step();
    const at::Tensor later = net->weight.detach().clone();
    accelerator.load_state();
    EXPECT_TRUE(net->weight.equal(weight)) << async;
    for (int i = 0; i < 5; ++i) step();
    EXPECT_TRUE(net->weight.equal(later)) << async;  // GPU random numbers, moments and scale
  }
}

// The forms that the program's own state can have.
struct Json {
  nlohmann::json value;
  nlohmann::json state_dict() const { return value; }
  void load_state_dict(const nlohmann::json& state) { value = state; }
};
struct Tensors {
  StateDict value;
  StateDict state_dict() const { return value; }
  void load_state_dict(const StateDict& state) {
    value = StateDict();
    for (const auto& item : state) value.insert(item.key(), item.value().clone());
  }
};

TEST(SaveState, ObjectsOfTheProgramItself) {
  const TempFolder folder;
  Training training(in_project(folder));
  Json list{{1, "two", 3.5, nullptr}};
  Json nothing{nlohmann::json::object()};
  Tensors tensors{{{"half", torch::ones({2}, torch::kHalf)}, {"scalar", torch::tensor(7)}}};
  training.accelerator.register_for_checkpointing("list", list);
  training.accelerator.register_for_checkpointing("nothing", nothing);
  training.accelerator.register_for_checkpointing("tensors.of-mine_1", tensors);
  expect_error([&] { training.accelerator.register_for_checkpointing("list", list); },
               {"'list' twice"});
  expect_error([&] { training.accelerator.register_for_checkpointing("../x", list); }, {"'../x'"});
  const std::string path = training.accelerator.save_state();
  list.value = 3;
  nothing.value = {{"a", 1}};
  tensors.value = StateDict();
  training.accelerator.load_state();
  EXPECT_EQ(list.value, nlohmann::json({1, "two", 3.5, nullptr}));
  EXPECT_EQ(nothing.value, nlohmann::json::object());
  EXPECT_TRUE(tensors.value["half"].equal(torch::ones({2}, torch::kHalf)));
  EXPECT_EQ(tensors.value["scalar"].item<int64_t>(), 7);
}

TEST(SaveState, ObjectsKeepNumbersThatJsonLacksAndMayWriteToTheirTensors) {
  const TempFolder folder;
  Training training(in_project(folder));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Sorted by file, "best-loss" comes before "best"; sorted by name, it comes after.
  Json best{{{"best", kInfinity}, {"worst", {-kInfinity, std::nan("")}}}};
  Json best_loss{{{"plain", 1.5}}};
  struct Kept {
    at::Tensor average = torch::ones({3});
    StateDict state_dict() const { return {{"average", average}}; }
    void load_state_dict(const StateDict& state) { average = state["average"]; }
  } kept;
  training.accelerator.register_for_checkpointing("best", best);
  training.accelerator.register_for_checkpointing("best-loss", best_loss);
  training.accelerator.register_for_checkpointing("kept", kept);
  training.accelerator.save_state();
  best.value = best_loss.value = 0;
  training.accelerator.load_state();
  EXPECT_EQ(best.value.at("best").get<double>(), kInfinity);
  EXPECT_EQ(best.value.at("worst")[0].get<double>(), -kInfinity);
  EXPECT_TRUE(std::isnan(best.value.at("worst")[1].get<double>()));
  EXPECT_EQ(best_loss.value, (nlohmann::json{{"plain", 1.5}}));
  kept.average.mul_(2);
  EXPECT_TRUE(kept.average.equal(torch::full({3}, 2.0F)));
}

TEST(SaveState, HooksSeeTheModels) {
  const TempFolder folder;
  Training training(in_project(folder));
  std::vector<std::string> calls;
  auto saving = training.accelerator.register_save_state_pre_hook(
      [&](std::vector<StateDict>& models, const std::string& path) {
        calls.push_back("save " + path);
        models.at(0) = {{"weight", models.at(0)["weight"]}};
      });
  auto loading = training.accelerator.register_load_state_pre_hook(
      [&](std::vector<StateDict>& models, const std::string& path) {
        calls.push_back("load " + path);
        models.at(0) = {{"weight", models.at(0)["weight"]}};
      });
  const std::string path = training.accelerator.save_state();
  training.step();
  const at::Tensor bias = training.net->bias.detach().clone();
  training.accelerator.load_state();
  EXPECT_TRUE(training.net->bias.equal(bias));
  EXPECT_EQ(calls, (std::vector<std::string>{"save " + path, "load " + path}));
  saving.remove();
  loading.remove();
  training.accelerator.save_state();
  training.accelerator.load_state();
  EXPECT_EQ(calls.size(), 2U);
}

}  // namespace
