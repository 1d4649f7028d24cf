#include <accelerant/amp/grad_scaler.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/checkpoint/training_files.h>
#include <accelerant/optim/optimizer_state.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "support/expect_error.h"
#include "support/same_module.h"
#include "support/temp_folder.h"

namespace {

using accelerant::load_checkpoint_in_model;
using accelerant::load_tensors;
using accelerant::load_torch_optimizer;
using accelerant::save;
using accelerant::StateDict;
using accelerant::optim::ParameterNames;
namespace nn = torch::nn;
namespace to = torch::optim;

nn::Sequential norm_net() {
  return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 1));
}

void train(nn::Sequential& net, to::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    net->forward(torch::ones({5, 3}) * (i + 1)).pow(2).sum().backward();
    optimizer.step();
  }
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// --- Models of torch::save ------------------------------------------------------------------------

TEST(TorchSave, ModulesAreLoaded) {
  const TempFolder folder;
  auto net = norm_net();
  net->forward(torch::randn({6, 3}));
  torch::save(net, folder.path("net.pt"));
  auto other = norm_net();
  const auto loaded = load_checkpoint_in_model(other, folder.path("net.pt"));
  EXPECT_TRUE(loaded.missing.empty() && loaded.unexpected.empty());
  expect_same_module(*other, *net);
  EXPECT_EQ(load_tensors(folder.path("net.pt")).size(), 9U);
}

TEST(TorchSave, WhatDoesNotFitIsListedBeforeAnythingChanges) {
  const TempFolder folder;
  torch::save(norm_net(), folder.path("net.pt"));
  nn::Sequential other(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 2), nn::Linear(2, 1));
  const auto before = other->parameters()[0].clone();
  const std::string message =
      whole_error_of([&] { load_checkpoint_in_model(other, folder.path("net.pt")); });
  for (const char* part : {"2.weight, shape: expected [2, 4], got [1, 4]", "2.bias", "3.weight",
                           "not in the files (2)", "which is unchanged"}) {
    EXPECT_TRUE(contains(message, part)) << part;
  }
  EXPECT_TRUE(torch::equal(other->parameters()[0], before));
  EXPECT_EQ(load_checkpoint_in_model(nn::Sequential(nn::Linear(3, 4)), folder.path("net.pt"),
                                     {.strict = false})
                .unexpected.size(),
            7U);
}

// --- Optimizers of torch::save --------------------------------------------------------------------

template <class Optimizer, class Options>
void expect_to_go_on(const Options& options) {
  const TempFolder folder;
  auto net = norm_net();
  Optimizer optimizer(net->parameters(), options);
  train(net, optimizer, 3);
  torch::save(net, folder.path("net.pt"));
  torch::save(optimizer, folder.path("optimizer.pt"));
  train(net, optimizer, 3);

  auto other = norm_net();
  Optimizer loaded(other->parameters(), Options(0.7));
  load_checkpoint_in_model(other, folder.path("net.pt"));
  load_torch_optimizer(loaded, folder.path("optimizer.pt"));
  train(other, loaded, 3);
  expect_same_module(*other, *net);
}

TEST(TorchSave, OptimizersGoOn) {
  expect_to_go_on<to::SGD>(to::SGDOptions(0.01).momentum(0.9));
  expect_to_go_on<to::SGD>(to::SGDOptions(0.01));
  expect_to_go_on<to::Adam>(to::AdamOptions(0.01).amsgrad(true));
  expect_to_go_on<to::AdamW>(to::AdamWOptions(0.01));
  expect_to_go_on<to::RMSprop>(to::RMSpropOptions(0.01).centered(true).momentum(0.5));
  expect_to_go_on<to::Adagrad>(to::AdagradOptions(0.01));
}

TEST(TorchSave, OptimizersWithSeveralGroups) {
  const TempFolder folder;
  const auto make = [](nn::Sequential& net, double lr) {
    const auto parameters = net->parameters();
    std::vector<to::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2),
                        std::make_unique<to::AdamOptions>(lr));
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()));
    return to::Adam(groups, to::AdamOptions(2 * lr));
  };
  auto net = norm_net();
  auto optimizer = make(net, 0.125);
  train(net, optimizer, 2);
  torch::save(optimizer, folder.path("optimizer.pt"));
  auto loaded = make(net, 1.0);
  load_torch_optimizer(loaded, folder.path("optimizer.pt"));
  EXPECT_EQ(loaded.param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(loaded.param_groups()[1].options().get_lr(), 0.25);
  EXPECT_EQ(loaded.state().size(), 6U);
}

TEST(TorchSave, OptimizersThatDoNotFitStayAsTheyAre) {
  const TempFolder folder;
  const std::string path = folder.path("optimizer.pt");
  auto net = norm_net();
  to::Adam adam(net->parameters(), to::AdamOptions(0.5));
  train(net, adam, 1);
  torch::save(adam, path);

  nn::Sequential wide(nn::Linear(3, 5), nn::BatchNorm1d(5), nn::Linear(5, 1));
  to::Adam of_wide(wide->parameters(), to::AdamOptions(0.1));
  EXPECT_TRUE(contains(whole_error_of([&] { load_torch_optimizer(of_wide, path); }), path));
  EXPECT_EQ(of_wide.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_TRUE(of_wide.state().empty());

  to::Adam of_fewer(nn::Linear(3, 4)->parameters(), to::AdamOptions(0.1));
  EXPECT_TRUE(contains(whole_error_of([&] { load_torch_optimizer(of_fewer, path); }),
                       "group 0 has 6 parameters"));
  to::SGD sgd(net->parameters(), to::SGDOptions(0.1));
  EXPECT_TRUE(
      contains(whole_error_of([&] { load_torch_optimizer(sgd, path); }), "a torch::optim::SGD"));
}

TEST(TorchSave, FilesThatAreNoOptimizer) {
  const TempFolder folder;
  const std::string path = folder.path("file.pt");
  auto net = norm_net();
  to::SGD sgd(net->parameters(), to::SGDOptions(0.1));
  const auto message = [&] { return whole_error_of([&] { load_torch_optimizer(sgd, path); }); };
  EXPECT_TRUE(contains(message(), path));  // there is no such file
  torch::save(net, path);
  EXPECT_TRUE(contains(message(), "torch::save(optimizer, path)"));
  accelerant::save_python_optimizer(sgd, {}, path);
  EXPECT_TRUE(contains(message(), path + " was not written by C++'s torch::save"));
  write_text(path, "nothing of the kind");
  EXPECT_TRUE(contains(message(), path));
  torch::save(sgd, path);
  std::ifstream file(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  write_text(path, whole.substr(0, whole.size() / 2));
  EXPECT_TRUE(contains(message(), path));
}

// --- Python's files -------------------------------------------------------------------------------

TEST(PythonOptimizer, IsNamedInErrors) {
  const TempFolder folder;
  const std::string path = folder.path("optimizer.bin");
  auto net = norm_net();
  const ParameterNames names(net->named_parameters());
  to::SGD sgd(net->parameters(), to::SGDOptions(0.1));
  const auto message = [&] {
    return whole_error_of([&] { accelerant::load_python_optimizer(sgd, names, path); });
  };
  EXPECT_TRUE(contains(message(), path));  // there is no such file
  save(torch::ones(3), path, {.safe_serialization = false});
  EXPECT_TRUE(contains(message(), "got a Python torch.Tensor"));
  save({{"a", torch::ones(3)}}, path, {.safe_serialization = false});
  EXPECT_TRUE(contains(message(), path + ": "));
  EXPECT_TRUE(contains(message(), "it has no dict 'state' and list 'param_groups'"));
  torch::save(sgd, path);
  EXPECT_TRUE(contains(message(), "C++'s torch::save"));
  EXPECT_TRUE(contains(
      whole_error_of([&] { accelerant::save_python_optimizer(sgd, names, folder.path("no/a")); }),
      "no/a"));
}

TEST(PythonScaler, ADisabledOneIsAnEmptyDict) {
  const TempFolder folder;
  const std::string path = folder.path("scaler.pt");
  accelerant::GradScaler disabled({.device = torch::kCPU, .enabled = false});
  accelerant::save_python_scaler(disabled, path);
  accelerant::load_python_scaler(disabled, path);
  accelerant::GradScaler scaler({.device = torch::kCPU, .init_scale = 8.0});
  EXPECT_TRUE(contains(whole_error_of([&] { accelerant::load_python_scaler(scaler, path); }),
                       path + ": The source state dict is empty"));
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

// --- Tensors --------------------------------------------------------------------------------------

TEST(SaveTensors, EveryFormComesBack) {
  const TempFolder folder;
  const auto weight = torch::randn({2, 3});
  for (const bool safe : {true, false}) {
    const std::string path = folder.path(safe ? "a.safetensors" : "a.pt");
    save(weight, path, {.safe_serialization = safe});
    EXPECT_TRUE(torch::equal(load_tensors(path)[accelerant::kSingleTensorName], weight));
    save({{"b", weight.t()}, {"a", torch::arange(3)}}, path, {.safe_serialization = safe});
    EXPECT_TRUE(torch::equal(load_tensors(path)["b"], weight.t()));
    save(std::map<std::string, at::Tensor>{{"c", weight}, {"d", weight}}, path,
         {.safe_serialization = safe});
    StateDict loaded = load_tensors(path);
    EXPECT_EQ(loaded.size(), 2U);
    loaded["c"].fill_(1);  // writable, and still one tensor
    EXPECT_TRUE(torch::equal(loaded["d"], torch::ones({2, 3})));
  }
  const auto complex = torch::complex(weight, weight);
  save(complex.conj(), folder.path("conj"));
  EXPECT_TRUE(torch::equal(load_tensors(folder.path("conj"))["tensor"], complex.conj()));
}

TEST(SaveTensors, WhatCannotBeSavedLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.path("file");
  for (const bool safe : {true, false}) {
    save(torch::ones(2), path, {.safe_serialization = safe});
    for (const auto& tensor :
         {at::Tensor(), torch::eye(3).to_sparse(), torch::empty(2, torch::kMeta)}) {
      const StateDict tensors = {{"fine", torch::zeros(1)}, {"bad", tensor}};
      const auto message =
          whole_error_of([&] { save(tensors, path, {.safe_serialization = safe}); });
      EXPECT_TRUE(contains(message, "tensor 'bad'"));
      EXPECT_THROW(save(tensor, path, {.safe_serialization = safe}), accelerant::Error);
    }
    EXPECT_TRUE(torch::equal(load_tensors(path)["tensor"], torch::ones(2)));
  }
}

}  // namespace
