// What dispatching and offloading refuse, and what files it leaves behind.
#include <accelerant/checkpoint/models.h>
#include <accelerant/core/failpoint.h>
#include <accelerant/format/safetensors.h>
#include <accelerant/paging/empty_weights.h>
#include <accelerant/paging/offload.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "core/files.h"
#include "paging/offload/files.h"
#include "paging/random_models.h"
#include "paging/residency.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/same_module.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant;
using models::LanguageModel;
using models::make_model;
using models::some_tokens;

// --- Errors --------------------------------------------------------------------------------------

TEST(DispatchErrors, MapsMustCoverTheModel) {
  LanguageModel net = make_model({}, 1);
  const std::string message = whole_error_of([&] {
    dispatch_model(net, {{"words", "cpu"}, {"blocks", "disk"}}, {.offload_folder = "/tmp"});
  });
  EXPECT_TRUE(contains(message, "does not give any device for the following parameters"));
  EXPECT_TRUE(contains(message, "head"));
  EXPECT_FALSE(has_offloaded_params(net));
}

TEST(DispatchErrors, UnknownNamesAreAWarning) {
  const GatheredLog log;
  LanguageModel net = make_model({}, 1);
  dispatch_model(net, {{"", "cpu"}, {"nothing", "cpu"}});
  EXPECT_TRUE(contains(log.text(), "nothing"));
}

TEST(DispatchErrors, DiskNeedsAFolder) {
  LanguageModel net = make_model({}, 1);
  const std::string message = whole_error_of([&] {
    dispatch_model(net, {{"", "cpu"}, {"blocks", "disk"}, {"head", "disk"}});
  });
  EXPECT_TRUE(contains(message, "We need an `offload_folder`"));
  EXPECT_TRUE(contains(message, "'blocks', 'head'"));
}

TEST(DispatchErrors, ModelsAreOffloadedOnce) {
  LanguageModel net = make_model({}, 1);
  cpu_offload(net);
  for (const auto& again : std::vector<std::function<void()>>{
           [&] { cpu_offload(net); }, [&] { disk_offload(net, "/tmp"); },
           [&] {
             dispatch_model(net, {{"", "disk"}}, {.offload_folder = "/tmp"});
           },
           [&] { cpu_offload_with_hook(net); }, [&] { cpu_offload(*net->blocks[0]); },
           [&] {
             load_checkpoint_and_dispatch(net, "/tmp", {.device_map = {{"", "disk"}}});
           }}) {
    EXPECT_TRUE(contains(whole_error_of(again), "call undo_offload() first"));
  }
}

TEST(DispatchErrors, ModelsWithoutValuesNeedFiles) {
  LanguageModel net = init_empty_weights([] { return make_model({}, 1); });
  EXPECT_TRUE(contains(whole_error_of([&] { cpu_offload(net); }), "load_checkpoint_and_dispatch"));
  const TempFolder folder;
  const std::string message = whole_error_of([&] { disk_offload(net, folder.path()); });
  EXPECT_TRUE(contains(message, "is on the meta device"));
  EXPECT_TRUE(net->head.is_meta());
  EXPECT_TRUE(contains(whole_error_of([&] { dispatch_model(net, {{"", "cpu"}}); }), "meta device"));
}

TEST(DispatchErrors, AnEmptyModelThatCannotBeOffloadedStaysEmpty) {
  const TempFolder folder;
  save_model(make_model({}, 1), folder.path());
  LanguageModel net = init_empty_weights([] { return make_model({}, 1); });
  const std::size_t empty = empty_tensors(net).size();
  const at::Tensor alias = net->head.detach();
  const at::Device host(at::kCPU);
  EXPECT_TRUE(contains(
      whole_error_of([&] { disk_offload(net, folder.path(), {.execution_device = host}); }),
      "cannot be paged"));
  EXPECT_EQ(empty_tensors(net).size(), empty);
  EXPECT_TRUE(contains(
      whole_error_of([&] {
        dispatch_model(net, {{"", "disk"}}, {.main_device = host, .offload_folder = folder.path()});
      }),
      "cannot be paged"));
  EXPECT_EQ(empty_tensors(net).size(), empty);
}

TEST(DispatchErrors, CheckpointsMustHoldTheModel) {
  const TempFolder folder;
  LanguageModel small = make_model({.blocks = 1}, 1);
  save_model(small, folder.path());
  LanguageModel net = init_empty_weights([] { return make_model({.blocks = 2}, 1); });
  const std::string message = whole_error_of([&] {
    load_checkpoint_and_dispatch(net, folder.path(), {.device_map = {{"", "disk"}}});
  });
  EXPECT_TRUE(contains(message, "blocks.1.first.weight"));
  EXPECT_TRUE(net->head.is_meta());
  // A model with values keeps those that are missing.
  LanguageModel real = make_model({.blocks = 2}, 2);
  const LoadedModel loaded = load_checkpoint_and_dispatch(
      real, folder.path(), {.device_map = {{"", "disk"}}, .offload_folder = folder.path("more")});
  EXPECT_FALSE(loaded.missing.empty());
  LanguageModel expected = make_model({.blocks = 2}, 2);
  load_checkpoint_in_model(expected, folder.path(), {.strict = false});
  undo_offload(real);
  expect_same_module(*expected, *real);
  EXPECT_TRUE(contains(whole_error_of([&] {
                         load_checkpoint_and_dispatch(
                             real, folder.path(), {.device_map = {{"", "disk"}}, .strict = true});
                       }),
                       "not in the files"));
}

// In a file each would have values of its own.
TEST(DispatchErrors, FilesDoNotUntieViews) {
  const TempFolder folder;
  torch::nn::Module net;
  const at::Tensor weight = torch::randn({400, 300});
  net.register_parameter("weight", weight);
  const at::Tensor turned = net.register_parameter("turned", weight.detach().t());
  const std::string message = whole_error_of([&] { disk_offload(net, folder.path("offload")); });
  EXPECT_TRUE(contains(message, "one is a view of the other"));
  EXPECT_FALSE(has_offloaded_params(net));
  EXPECT_TRUE(turned.is_alias_of(net.named_parameters()["weight"]));
}

TEST(DispatchErrors, NamesOfStrategiesAreChecked) {
  EXPECT_TRUE(contains(whole_error_of([] { DeviceMapChoice choice("best"); }), "balanced_low_0"));
}

TEST(DispatchErrors, DevicesMustExist) {
  LanguageModel net = make_model({}, 1);
  const c10::Device far(torch::kCUDA, 77);
  EXPECT_TRUE(
      contains(whole_error_of([&] { cpu_offload(net, {.execution_device = far}); }), "cuda:77"));
  EXPECT_TRUE(contains(whole_error_of([&] {
                         dispatch_model(net, {{"", "cpu"}, {"head", 77}});
                       }),
                       "77"));
  EXPECT_TRUE(contains(whole_error_of([&] {
                         dispatch_model(net, {{"", "cpu"}, {"head", "meta"}});
                       }),
                       "meta"));
}

TEST(DispatchErrors, ModelsAreUndoneToDevicesThatExist) {
  LanguageModel net = make_model({}, 1);
  const LanguageModel plain = make_model({}, 1);
  cpu_offload(net);
  for (const c10::Device wrong : {c10::Device(torch::kMeta), c10::Device(torch::kCUDA, 77)}) {
    EXPECT_TRUE(contains(whole_error_of([&] { undo_offload(net, wrong); }), wrong.str()));
    EXPECT_TRUE(has_offloaded_params(net));
  }
  undo_offload(net);
  EXPECT_TRUE(torch::equal(net->head, plain->head));
}

TEST(DispatchErrors, MovingAnOffloadedModelIsFound) {
  LanguageModel net = make_model({}, 1);
  LanguageModel plain = make_model({}, 1);
  cpu_offload(net, {.execution_device = at::Device(at::kCPU)});
  verify_offload(net);
  net->to(torch::kDouble);
  plain->to(torch::kDouble);
  const std::string message = whole_error_of([&] { verify_offload(net); });
  EXPECT_TRUE(contains(message, "undo_offload()"));
  EXPECT_TRUE(contains(message, "blocks.0.first.weight"));
  const at::Tensor tokens = some_tokens();
  EXPECT_TRUE(torch::equal(plain->forward(tokens), net->forward(tokens))) << "but it computes";
  undo_offload(net);
  expect_same_module(*plain, *net);
}

TEST(DispatchErrors, OneDeviceIsAnOrdinaryModel) {
  LanguageModel net = make_model({}, 1);
  dispatch_model(net, {{"", "cpu"}});
  EXPECT_FALSE(has_offloaded_params(net));
  net->to(torch::kDouble);
  verify_offload(net);
}

TEST(DispatchErrors, WithoutAMapAModelIsOnlyLoaded) {
  const TempFolder folder;
  LanguageModel other = make_model({}, 2);
  save_model(other, folder.path());
  LanguageModel net = make_model({}, 1);
  load_checkpoint_and_dispatch(net, folder.path());
  EXPECT_FALSE(has_offloaded_params(net));
  expect_same_module(*other, *net);
}

// --- Files ---------------------------------------------------------------------------------------

// Children that are forked cannot use a GPU that their parent has used.
const OffloadOptions on_the_host{.execution_device = at::Device(at::kCPU)};

TEST(DispatchFiles, ModelsInTheFolderAreUsedIfTheirValuesAreTheSame) {
  const TempFolder folder;
  LanguageModel net = make_model({}, 1);
  save_model(net, folder.path());
  disk_offload(net, folder.path(), on_the_host);
  EXPECT_FALSE(path_exists(folder.path("offload.safetensors")));
  undo_offload(net);
  {
    const at::NoGradGuard no_grad;
    net->head.add_(1);
  }
  disk_offload(net, folder.path(), on_the_host);
  const auto written = format::SafetensorsFile::open(folder.path("offload.safetensors"));
  EXPECT_EQ(written.names(), (std::vector<std::string_view>{"head"}));
  LanguageModel expected = make_model({}, 1);
  EXPECT_TRUE(torch::equal(net->head, expected->head + 1));
}

TEST(DispatchFiles, WhatWasOffloadedIsFoundAgain) {
  const TempFolder folder;
  {
    LanguageModel net = make_model({}, 1);
    disk_offload(net, folder.path(), on_the_host);
  }
  LanguageModel net = make_model({}, 1);
  {
    const at::NoGradGuard no_grad;
    net->head.add_(1);
  }
  disk_offload(net, folder.path(), on_the_host);
  const auto file = format::SafetensorsFile::open(folder.path("offload.safetensors"));
  EXPECT_NE(file.find("head"), nullptr);
  EXPECT_NE(file.find("words.weight"), nullptr) << "what was there before is still there";
  LanguageModel expected = make_model({}, 1);
  EXPECT_TRUE(torch::equal(net->head, expected->head + 1));
  EXPECT_TRUE(torch::equal(net->words->weight, expected->words->weight));
}

TEST(DispatchFiles, AnEmptyModelFindsAllItsValuesAgain) {
  const TempFolder folder;
  const models::Shape shape{.is_tied = true, .has_batch_norm = true};
  const LanguageModel expected = make_model(shape, 1);
  {
    LanguageModel net = make_model(shape, 1);
    disk_offload(net, folder.path(), on_the_host);
  }
  const std::string before = TempFolder::content_of(folder.path("offload.safetensors"));
  LanguageModel net = init_empty_weights([&] { return make_model(shape, 2); });
  disk_offload(net, folder.path(), on_the_host);
  EXPECT_TRUE(TempFolder::content_of(folder.path("offload.safetensors")) == before);
  undo_offload(net);
  expect_same_module(*expected, *net);
}

TEST(DispatchFiles, BuffersOfAnEmptyModelDoNotReplaceThoseInTheFolder) {
  const TempFolder folder;
  {
    LanguageModel net = make_model({}, 1);
    net->scale.fill_(7);
    disk_offload(net, folder.path(), on_the_host);
  }
  LanguageModel net = init_empty_weights([&] { return make_model({}, 2); });
  disk_offload(net, folder.path(), on_the_host);
  EXPECT_EQ(net->scale.item<float>(), 0.5F);
  const auto stored = paging::tensors_in_folder(folder.path());
  at::Tensor scale = torch::empty({1});
  paging::read_into(stored.at("scale"), scale);
  EXPECT_EQ(scale.item<float>(), 7);
}

TEST(DispatchFiles, ReadingATruncatedFileIsAnError) {
  const TempFolder folder;
  LanguageModel net = make_model({}, 1);
  save_model(net, folder.path());
  const auto known = paging::tensors_in_folder(folder.path());
  ASSERT_EQ(::truncate(folder.path("model.safetensors").c_str(), 0), 0);
  EXPECT_TRUE(contains(whole_error_of([&] {
                         paging::put_on_disk({{"head", net->head}}, known, folder.path());
                       }),
                       "has shrunk"));
  const at::Tensor memory = torch::empty_like(net->head);
  EXPECT_TRUE(
      contains(whole_error_of([&] { paging::read_into(known.at("head"), memory); }), "has shrunk"));
}

TEST(DispatchFiles, AnIndexNamesFilesAndTensors) {
  const TempFolder folder;
  LanguageModel net = make_model({}, 1);
  LanguageModel expected = make_model({}, 1);
  save({{"other_name", net->head.detach()}}, folder.path("head.safetensors"));
  dispatch_model(net, {{"", "cpu"}, {"head", "disk"}},
                 {.offload_index = {{"head",
                                     {.safetensors_file = folder.path("head.safetensors"),
                                      .weight_name = "other_name"}}}});
  EXPECT_TRUE(paging::is_paged(net->head));
  undo_offload(net);
  expect_same_module(*expected, *net);
}

// For tests that change or end the whole process. The body returns false if this machine does not
// allow it.
int status_of_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);
    bool ran = true;
    try {
      ran = body();
    } catch (const std::exception& error) {  // the rest of the tests is the parent's
      ADD_FAILURE() << error.what();
    }
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : ran ? 0 : 77);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(DispatchFiles, AFullDiskChangesNothing) {
  const TempFolder folder;
  LanguageModel net = make_model({}, 1);
  const int status = status_of_child([&] {
    const bool is_mounted =
        (::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=1m") == 0;
    if (!is_mounted) return false;
    const std::string message =
        whole_error_of([&] { disk_offload(net, folder.path(), on_the_host); });
    EXPECT_TRUE(contains(message, "No space left on device"));
    EXPECT_TRUE(contains(message, "Weights cannot be offloaded"));
    EXPECT_FALSE(has_offloaded_params(net));
    EXPECT_NE(net->head.data_ptr(), nullptr);
    EXPECT_TRUE(entries_of(folder.path()).empty());
    return true;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs to mount a disk";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Kills a child at a failpoint of an operation on an offloaded model.
void kill_at(const char* failpoint, const std::function<void()>& operation) {
  const int status = status_of_child([&] {
    ::setenv("ACCELERANT_FAILPOINT", (std::string(failpoint) + ":kill@2").c_str(), 1);
    reload_failpoints();
    operation();
    return true;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << failpoint;
}

TEST(DispatchFiles, KilledWhileOffloadingTheOldFileIsWhole) {
  const TempFolder folder;
  LanguageModel net = make_model({}, 1);
  {
    LanguageModel first = make_model({}, 1);
    disk_offload(first, folder.path(), on_the_host);
  }
  const std::string before = TempFolder::content_of(folder.path("offload.safetensors"));
  LanguageModel other = make_model({}, 2);
  kill_at("offload.writing", [&] { disk_offload(other, folder.path(), on_the_host); });
  EXPECT_TRUE(TempFolder::content_of(folder.path("offload.safetensors")) == before);
  disk_offload(other, folder.path(), on_the_host);
  LanguageModel expected = make_model({}, 2);
  undo_offload(other);
  expect_same_module(*expected, *other);
}

TEST(DispatchFiles, KilledInTheMiddleOfASaveTheOldModelIsWhole) {
  const TempFolder folder;
  LanguageModel old_model = make_model({}, 1);
  save_model(old_model, folder.path("model"));
  LanguageModel net = make_model({}, 2);  // seeds GPUs, too, which a child cannot
  kill_at("paging.fetch", [&] {
    disk_offload(net, folder.path("offload"),
                 {.execution_device = at::Device(at::kCPU), .budget = 0, .zero_copy = false});
    save_model(net, folder.path("model"));
  });
  LanguageModel loaded = make_model({}, 3);
  load_checkpoint_in_model(loaded, folder.path("model"));
  expect_same_module(*old_model, *loaded);
}

// In bytes.
int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if (word == "RssAnon:" && status >> value) return 1024 * value;
  }
  return 0;
}

TEST(DispatchFiles, MemoryStaysBelowTheModel) {
  if (is_sanitized) GTEST_SKIP() << "sanitizers bring a malloc of their own";
  const TempFolder folder;
  static constexpr int64_t width = 1024;
  static constexpr int64_t layers = 24;  // of 4 MiB
  const auto make = [] {
    torch::nn::Sequential net;
    for (int64_t i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(width, width));
    return net;
  };
  save_model(make(), folder.path("model"));
  const at::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({2, width});
  for (const bool zero_copy : {true, false}) {
    torch::nn::Sequential warm = torch::nn::Sequential(torch::nn::Linear(width, width));
    warm->forward(x);
    const int64_t before = anonymous_memory();
    torch::nn::Sequential net = init_empty_weights(make);
    load_checkpoint_and_dispatch(net, folder.path("model"),
                                 {.device_map = {{"", "disk"}}, .zero_copy = zero_copy});
    for (int i = 0; i < 2; ++i) net->forward(x);
    EXPECT_LT(anonymous_memory() - before, int64_t{40} << 20) << "of 96 MiB";
    save_model(net, folder.path("saved"));
    EXPECT_LT(anonymous_memory() - before, int64_t{60} << 20) << "a save streams";
    EXPECT_TRUE(TempFolder::content_of(folder.path("model/model.safetensors")) ==
                TempFolder::content_of(folder.path("saved/model.safetensors")));
  }
}

}  // namespace
