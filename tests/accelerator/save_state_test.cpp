// save_state and load_state in one process: what comes back, numbers and limits, and what is refused. That a training
// goes on to the last bit is in resume/resume_test.py.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::entries_of;
using accelerant::NamedState;
using accelerant::path_exists;
using accelerant::StateDict;

AcceleratorOptions in_project(const TempFolder& folder, const std::string& resume = "no") {
  auto options = on_cpu();
  options.project = {.dir = folder.path(), .resume = resume};
  return options;
}

template <class F>
void expect_error(F&& f, std::initializer_list<std::string> parts) {
  const std::string text = whole_error_of(f);
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part));
}

void flip_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

// Gathers what is logged for its own lifetime.
class Log {
 public:
  Log() : before_(accelerant::set_log_handler([this](auto, auto text) { text_ += text; })) {}
  ~Log() { accelerant::set_log_handler(before_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  accelerant::LogHandler before_;
};

// A training with one of everything.
struct Training {
  explicit Training(const AcceleratorOptions& options, int64_t width = 3)
      : accelerator(options),
        net(2, width),
        sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {
    std::tie(model, optimizer, loader, scheduler) = accelerator.prepare(net, sgd, batches, decay);
  }

  void step() {
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
  torch::optim::StepLR decay{sgd, 2, 0.5};
  decltype(counting_loader(8)) batches = counting_loader(8, {.batch_size = 2, .shuffle = true});
  accelerant::Model<torch::nn::Linear> model;
  accelerant::Optimizer optimizer;
  decltype(counting_loader(8)) loader;
  accelerant::Scheduler scheduler;
};

double rate_of(Training& training) {
  return static_cast<torch::optim::SGDOptions&>(training.sgd.param_groups()[0].options()).lr();
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
  const Log log;
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
  expect_error([&] { fewer.load_state(); }, {"1 optimizers", "0 prepared", "in the same order"});

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

  const Log log;
  {
    Training ending(on_cpu());
    ending.accelerator.save_state(impossible, {.async = true});
  }
  EXPECT_NE(log.text().find(impossible), std::string::npos) << log.text();
}

// The forms a state of the program's own can have.
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

TEST(Resume, NothingToResumeIsANewStart) {
  const TempFolder folder;
  Training training(in_project(folder, "auto"));
  EXPECT_EQ(*training.accelerator.epochs(3).begin(), 0);
}

TEST(Resume, ObjectsMayBePreparedOneByOne) {
  const TempFolder folder;
  Training first(in_project(folder));
  first.step();
  first.step();
  first.accelerator.save_state();

  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1).momentum(0.9));
  torch::optim::StepLR decay(sgd, 2, 0.5);
  const auto optimizer = accelerator.prepare_optimizer(sgd);  // before its model
  const auto model = accelerator.prepare_model(net);
  EXPECT_TRUE(net->weight.equal(first.net->weight));
  const auto loader = accelerator.prepare_data_loader(first.batches);
  const auto scheduler = accelerator.prepare_scheduler(decay);
  EXPECT_DOUBLE_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr(),
                   0.05);
  first.step();
  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  EXPECT_TRUE(net->weight.equal(first.net->weight));
}

TEST(Resume, WhatWasNeverPreparedIsMissed) {
  const TempFolder folder;
  Training(in_project(folder)).accelerator.save_state();
  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  const auto model = accelerator.prepare(net);
  expect_error(
      [&] {
        accelerator.backward(model(torch::ones({1, 2})).sum());
      },
      {"1 optimizers", "0 prepared"});
}

TEST(Resume, LoopsOverEpochsGoOn) {
  const TempFolder folder;
  const auto run = [&](const std::string& resume, int64_t stop_after) {
    std::vector<std::string> seen;
    Training training(in_project(folder, resume));
    int64_t batches = 0;
    const auto loop = [&](const std::string& name, int64_t epochs) {
      for (const int64_t epoch : training.accelerator.epochs(epochs)) {
        for (auto&& batch : training.loader) {
          (void)batch;
          training.step();
          seen.push_back(name + std::to_string(epoch) + ":" +
                         std::to_string(training.loader.position()));
          if (++batches == stop_after) {
            training.accelerator.save_state();
            return true;
          }
        }
      }
      return false;
    };
    if (!loop("a", 2)) loop("b", 3);
    return seen;
  };
  const auto whole = run("no", -1);
  ASSERT_EQ(whole.size(), 20U);
  for (int64_t stop = 1; stop <= 20; ++stop) {
    run_in_shell("rm -rf '" + folder.path("checkpoints") + "'");
    auto seen = run("no", stop);
    const auto rest = run("auto", -1);
    seen.insert(seen.end(), rest.begin(), rest.end());
    EXPECT_EQ(seen, whole) << "after " << stop;
  }
}

TEST(Resume, AfterARestartItIsTheDefault) {
  const TempFolder folder;
  auto options = in_project(folder);
  options.project.resume.reset();
  EXPECT_EQ(Accelerator(options).options().project.resume, "no");
  const Variable restarted("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_EQ(Accelerator(options).options().project.resume, "auto");
}

}  // namespace
