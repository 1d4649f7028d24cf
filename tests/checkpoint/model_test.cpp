#include <accelerant/accelerant.h>
#include <accelerant/checkpoint/models.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/same_module.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace {

using accelerant::entries_of;
using accelerant::load_checkpoint_in_model;
using accelerant::save_model;
using accelerant::StateDict;
namespace nn = torch::nn;

nn::Sequential small_net() {
  return nn::Sequential(nn::Linear(3, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
}

TEST(SaveModel, ComesBackFromAFolderAFileAndAnIndex) {
  const TempFolder folder;
  auto net = small_net();
  net->forward(torch::randn({4, 3}));  // the statistics differ from those of a new net
  save_model(net, folder.path("whole"));
  const auto saved = save_model(net, folder.path("parts"), {.max_shard_size = "0.05KB"});
  EXPECT_GT(saved.files.size(), 3U);
  for (const auto& path :
       {folder.path("whole"), folder.path("whole/model.safetensors"), folder.path("parts"),
        folder.path("parts/model.safetensors.index.json")}) {
    auto other = small_net();
    const auto loaded = load_checkpoint_in_model(other, path);
    EXPECT_TRUE(loaded.missing.empty() && loaded.unexpected.empty());
    expect_same_module(*other, *net);
  }
}

TEST(SaveModel, PreparedModelsAndModulesAreTheSame) {
  const TempFolder folder;
  auto net = small_net();
  accelerant::Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(net);
  save_model(model, folder.path("prepared"));
  save_model(*net.ptr(), folder.path("module"));
  EXPECT_EQ(TempFolder::content_of(folder.path("prepared/model.safetensors")),
            TempFolder::content_of(folder.path("module/model.safetensors")));
  auto other = small_net();
  load_checkpoint_in_model(accelerator.prepare_model(other), folder.path("prepared"));
  expect_same_module(*other, *net);
}

TEST(SaveModel, FilesOfTheModelBeforeAreRemovedAndNoOthers) {
  const TempFolder folder;
  auto net = small_net();
  save_model(net, folder.path(), {.max_shard_size = "0.05KB"});
  folder.write("config.json", "{}");
  folder.write("model-of-mine.safetensors", "not one of ours");
  folder.write("pytorch_model.bin", "an older one");
  save_model(net, folder.path());
  EXPECT_EQ(entries_of(folder.path()),
            (std::vector<std::string>{"config.json", "model-of-mine.safetensors",
                                      "model.checksums.json", "model.safetensors"}));
}

// Such a view is memory with a flag that it stands for other numbers than it holds.
TEST(SaveModel, ConjugateAndNegativeViewsAreSavedAndLoadedAsTheNumbersTheyAre) {
  const auto numbers = torch::complex(torch::randn({3}), torch::randn({3}));
  StateDict state;
  state.insert("plain", numbers);
  state.insert("conjugate", numbers.conj());
  state.insert("negative", torch::imag(numbers.conj()));
  ASSERT_TRUE(state["conjugate"].is_conj() && state["negative"].is_neg());
  for (const bool safe : {true, false}) {
    const TempFolder folder;
    save_model(state, folder.path(), {.safe_serialization = safe});
    StateDict loaded;
    loaded.insert("plain", torch::zeros({3}, torch::kComplexFloat).conj());
    loaded.insert("conjugate", torch::zeros({3}, torch::kComplexFloat));
    loaded.insert("negative", torch::imag(torch::zeros({3}, torch::kComplexFloat).conj()));
    load_checkpoint_in_model(loaded, folder.path());
    for (const auto& item : state)
      EXPECT_TRUE(torch::equal(item.value(), loaded[item.key()])) << item.key() << safe;
  }
}

TEST(SaveModel, ATensorMayHaveAnEmptyName) {
  StateDict state;
  state.insert("", torch::randn({3}));
  for (const bool safe : {true, false}) {
    const TempFolder folder;
    save_model(state, folder.path(), {.safe_serialization = safe});
    StateDict loaded;
    loaded.insert("", torch::zeros({3}));
    load_checkpoint_in_model(loaded, folder.path());
    EXPECT_TRUE(torch::equal(loaded[""], state[""])) << safe;
  }
}

TEST(SaveModel, WhatCannotBeSavedIsSaidBeforeAnythingIsWritten) {
  const TempFolder folder;
  const auto refused = [&](const torch::Tensor& tensor, const std::string& part) {
    StateDict state;
    state.insert("bad.tensor", tensor);
    const std::string error = whole_error_of([&] { save_model(state, folder.path("new")); });
    EXPECT_TRUE(contains(error, "bad.tensor")) << error;
    EXPECT_TRUE(contains(error, part)) << error;
  };
  refused(torch::eye(2).to_sparse(), "layout");
  refused(torch::empty({2}, torch::kMeta), "without data");
  refused(torch::zeros({2}, torch::kComplexDouble), "ComplexDouble");
  EXPECT_TRUE(contains(whole_error_of([&] {
                         save_model(small_net(), folder.path("new"), {.max_shard_size = "ten"});
                       }),
                       "ten"));
  EXPECT_FALSE(accelerant::path_exists(folder.path("new")));
  const std::string file = folder.write("file", "text");
  EXPECT_TRUE(contains(whole_error_of([&] { save_model(small_net(), file); }), "a folder"));
}

TEST(SaveModel, AFullDiskLeavesTheOldModel) {
  const TempFolder folder;
  auto net = small_net();
  save_model(net, folder.path());
  const std::string before = TempFolder::content_of(folder.path("model.safetensors"));
  const nn::Linear big(1000, 1000);
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 100'000, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = whole_error_of([&] { save_model(big, folder.path()); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(error, "model.safetensors cannot be written")) << error;
  EXPECT_TRUE(contains(error, "File too large")) << error;
  EXPECT_EQ(entries_of(folder.path()),
            (std::vector<std::string>{"model.checksums.json", "model.safetensors"}));
  EXPECT_EQ(TempFolder::content_of(folder.path("model.safetensors")), before);
}

TEST(LoadModel, AllThatDoesNotFitIsInOneErrorAndNothingChanges) {
  const TempFolder folder;
  nn::Sequential saved(nn::Linear(3, 5), nn::Linear(5, 2));
  save_model(saved, folder.path());
  nn::Sequential net(nn::Linear(3, 4), nn::Linear(5, 2), nn::Linear(2, 2));
  const auto before = net->parameters()[2].clone();
  std::string error = whole_error_of([&] { load_checkpoint_in_model(net, folder.path()); });
  for (const char* part : {"0.weight, shape: expected [4, 3], got [5, 3]", "0.bias", "2.weight",
                           "2.bias", "not in the files (2)", "strict = false"}) {
    EXPECT_TRUE(contains(error, part)) << error;
  }
  EXPECT_TRUE(torch::equal(net->parameters()[2], before));
  // Other shapes are always refused.
  error = whole_error_of([&] { load_checkpoint_in_model(net, folder.path(), {.strict = false}); });
  EXPECT_FALSE(contains(error, "not in the files")) << error;

  nn::Sequential longer(nn::Linear(3, 5), nn::Linear(5, 2), nn::Linear(2, 2));
  const auto loaded = load_checkpoint_in_model(longer, folder.path(), {.strict = false});
  EXPECT_EQ(loaded.missing, (std::vector<std::string>{"2.weight", "2.bias"}));
  EXPECT_TRUE(torch::equal(longer->parameters()[2], saved->parameters()[2]));
  nn::Sequential shorter(nn::Linear(3, 5));
  EXPECT_EQ(load_checkpoint_in_model(shorter, folder.path(), {.strict = false}).unexpected,
            (std::vector<std::string>{"1.bias", "1.weight"}));
}

TEST(LoadModel, TypesAreConvertedWhereThatMakesSense) {
  const TempFolder folder;
  StateDict state;
  state.insert("x", torch::randn({4}));
  save_model(state, folder.path());
  StateDict half;
  half.insert("x", torch::empty({4}, torch::kFloat16));
  load_checkpoint_in_model(half, folder.path());
  EXPECT_TRUE(torch::equal(half["x"], state["x"].to(torch::kFloat16)));
  StateDict whole;
  whole.insert("x", torch::zeros({4}, torch::kLong));
  EXPECT_TRUE(contains(whole_error_of([&] { load_checkpoint_in_model(whole, folder.path()); }),
                       "x, type: expected Long, got F32"));
}

TEST(LoadModel, TheTensorsOfTheModelStayTheSame) {
  const TempFolder folder;
  auto net = small_net();
  save_model(net, folder.path());
  auto other = small_net();
  std::vector<void*> before;
  for (const auto& parameter : other->parameters()) before.push_back(parameter.data_ptr());
  torch::optim::SGD sgd(other->parameters(), 0.1);
  load_checkpoint_in_model(other, folder.path());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(other->parameters()[i].data_ptr(), before[i]);
    EXPECT_TRUE(other->parameters()[i].requires_grad());
  }
  // A column-major weight keeps its layout.
  StateDict transposed;
  transposed.insert("0.weight", torch::empty({3, 5}).t());
  load_checkpoint_in_model(transposed, folder.path(), {.strict = false});
  EXPECT_TRUE(torch::equal(transposed["0.weight"], net->parameters()[0]));
  EXPECT_EQ(transposed["0.weight"].stride(0), 1);
}

TEST(LoadModel, TiedWeightsStayTiedInAnotherTypeToo) {
  const TempFolder folder;
  const auto make = [] {
    struct TiedImpl : nn::Module {
      nn::Linear in{register_module("in", nn::Linear(3, 3))};
      nn::Linear out{register_module("out", nn::Linear(3, 3))};
      TiedImpl() {
        out->weight.set_data(in->weight.data());
      }  // another tensor over the same memory
    };
    return std::make_shared<TiedImpl>();
  };
  const auto net = make();
  save_model(*net, folder.path());
  for (const auto type : {torch::kFloat32, torch::kFloat16}) {
    const auto other = make();
    load_checkpoint_in_model(*other, folder.path(), {.dtype = type});
    EXPECT_EQ(other->in->weight.data_ptr(), other->out->weight.data_ptr());
    EXPECT_EQ(other->out->weight.scalar_type(), type);
    EXPECT_TRUE(torch::equal(other->out->weight, net->in->weight.to(type)));
  }
}

TEST(LoadModel, LargeTensorsReachAGpuInPieces) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TempFolder folder;
  StateDict state;
  state.insert("large", torch::randn({25'000'003}));  // not a multiple of the buffers
  state.insert("small", torch::randn({3}));
  save_model(state, folder.path());
  StateDict on_gpu;
  for (const auto& item : state) on_gpu.insert(item.key(), torch::empty_like(item.value()).cuda());
  load_checkpoint_in_model(on_gpu, folder.path());
  for (const auto& item : state) {
    EXPECT_TRUE(torch::equal(on_gpu[item.key()].cpu(), item.value())) << item.key();
  }
}

TEST(LoadModel, WhatIsWrongWithFilesIsSaid) {
  const TempFolder folder;
  auto net = small_net();
  const auto error = [&](const std::string& path) {
    return whole_error_of([&] { load_checkpoint_in_model(net, path); });
  };
  EXPECT_TRUE(contains(error(folder.path("nowhere")), "There is no model at"));
  EXPECT_TRUE(contains(error(folder.path()), "No model found in"));
  folder.write("notes.txt", "hello");
  EXPECT_TRUE(contains(error(folder.path("notes.txt")), "notes.txt"));

  save_model(net, folder.path("parts"), {.max_shard_size = "0.05KB", .checksums = false});
  const std::string shard = entries_of(folder.path("parts")).front();
  run_in_shell("cp -r '" + folder.path("parts") + "' '" + folder.path("fewer") + "' && rm '" +
               folder.path("fewer/" + shard) + "'");
  EXPECT_TRUE(contains(error(folder.path("fewer")), shard));
  run_in_shell("cp '" + folder.path("parts/" + entries_of(folder.path("parts"))[1]) + "' '" +
               folder.path("parts/" + shard) + "'");
  const std::string swapped = error(folder.path("parts"));
  EXPECT_TRUE(contains(swapped, "only in the index")) << swapped;
  EXPECT_TRUE(contains(swapped, "only in the file")) << swapped;

  folder.write("evil.safetensors.index.json",
               R"({"metadata": {}, "weight_map": {"0.weight": "../../etc/model.safetensors"}})");
  EXPECT_TRUE(contains(error(folder.path("evil.safetensors.index.json")), "../../etc"));
}

// The peak memory of this process in bytes since the last reset.
int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

TEST(LoadModel, NeedsNoMoreMemoryThanTheModelAndOneTensor) {
  if (is_sanitized) GTEST_SKIP() << "sanitizers bring a malloc of their own";
  const TempFolder folder;
  StateDict state;
  constexpr int64_t kBytes = 64 << 20;
  torch::set_num_threads(2);  // each reads the file in pieces of 8 MiB
  for (int i = 0; i < 4; ++i) {
    state.insert("t" + std::to_string(i), torch::ones({kBytes / 4}));
  }
  save_model(state, folder.path());
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  if (!reset) GTEST_SKIP() << "the kernel's counter cannot be reset";
  const int64_t before = peak_memory();
  load_checkpoint_in_model(state, folder.path());
  EXPECT_LT(peak_memory() - before, kBytes / 2);  // straight into the model
  StateDict halves;
  for (const auto& item : state) {
    halves.insert(item.key(), torch::ones({kBytes / 4}, torch::kFloat16));
  }
  reset << "5" << std::flush;
  const int64_t with_halves = peak_memory();
  load_checkpoint_in_model(halves, folder.path());
  EXPECT_LT(peak_memory() - with_halves, kBytes * 3 / 2);  // one tensor for the conversion
}

}  // namespace
