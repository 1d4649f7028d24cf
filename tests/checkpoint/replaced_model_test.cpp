// Models that another process saves again while they are loaded.
#include <accelerant/checkpoint/models.h>
#include <accelerant/core/failpoint.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "support/temp_folder.h"

namespace {

using accelerant::load_checkpoint_and_dispatch;
using accelerant::LoadAndDispatchOptions;
using accelerant::save_model;
using accelerant::SaveModelOptions;
namespace nn = torch::nn;

// With this value everywhere. Weights are large enough to be used from files.
nn::Sequential net_with(double value, int64_t width = 400) {
  nn::Sequential net(nn::Linear(width, 400), nn::Linear(400, width));
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.fill_(value);
  return net;
}

// The value that the net has everywhere; -1 if it has several.
int only_value_in(const nn::Sequential& net) {
  const at::NoGradGuard no_grad;
  const auto value = net->parameters().front().max().item<double>();
  for (const at::Tensor& parameter : net->parameters()) {
    if (!parameter.eq(value).all().item<bool>()) return -1;
  }
  return static_cast<int>(value);
}

// How a process ends that loads a net and stops once its files are open, until `replace` has
// returned: with the value of what it has loaded, 100 for several values, 101 for an error.
template <class Replace>
int loaded_across(const std::string& folder, const LoadAndDispatchOptions& options,
                  const Replace& replace) {
  std::fflush(nullptr);
  const pid_t loader = ::fork();
  if (loader == 0) {
    int result = 101;
    try {
      at::set_num_threads(1);
      ::setenv("ACCELERANT_FAILPOINT", "model.opened:stop", 1);
      accelerant::reload_failpoints();
      const nn::Sequential net = net_with(0);
      load_checkpoint_and_dispatch(net, folder, options);
      const int value = only_value_in(net);
      result = value < 0 ? 100 : value;
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(result);
  }
  int status = 0;
  ::waitpid(loader, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
  if (!WIFSTOPPED(status)) return -1;
  replace();
  ::kill(loader, SIGCONT);
  ::waitpid(loader, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The host is the main device: children that are forked cannot use a GPU.
LoadAndDispatchOptions half_on_disk() {
  return {.device_map = {{"", "cpu"}, {"1", "disk"}}, .main_device = at::Device(at::kCPU)};
}

TEST(ModelReplacedWhileItIsLoaded, IsTheOldOneWithWeightsThatStayInItsFiles) {
  for (const char* const shard_size : {"10GB", "500KB"}) {
    for (const bool checksums : {true, false}) {
      for (const bool safe : {true, false}) {
        const TempFolder folder;
        const SaveModelOptions saving{
            .max_shard_size = shard_size, .safe_serialization = safe, .checksums = checksums};
        LoadAndDispatchOptions options = half_on_disk();
        options.checksums = checksums;
        if (!safe) options.offload_folder = folder.path("offload");
        save_model(net_with(1), folder.path("model"), saving);
        EXPECT_EQ(loaded_across(folder.path("model"), options,
                                [&] { save_model(net_with(2), folder.path("model"), saving); }),
                  1)
            << shard_size << ", checksums " << checksums << ", safetensors " << safe;
      }
    }
  }
}

TEST(ModelReplacedWhileItIsLoaded, KeepsTheShapesThatWereChecked) {
  const TempFolder folder;
  save_model(net_with(1), folder.path());
  EXPECT_EQ(loaded_across(folder.path(), half_on_disk(),
                          [&] { save_model(net_with(2, 500), folder.path()); }),
            1);
}

}  // namespace
