// Options, environment and properties of the Accelerator.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::Precision;

TEST(AcceleratorOptionsTest, Defaults) {
  const Accelerator accelerator({.cpu = true});
  EXPECT_EQ(accelerator.device(), at::Device(at::kCPU));
  EXPECT_EQ(accelerator.mixed_precision(), Precision::no);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 1);
  EXPECT_TRUE(accelerator.sync_gradients());
  EXPECT_TRUE(accelerator.is_main_process());
  EXPECT_TRUE(accelerator.is_local_main_process());
  EXPECT_TRUE(accelerator.is_last_process());
  EXPECT_FALSE(accelerator.use_distributed());
  EXPECT_EQ(accelerator.num_processes(), 1);
  EXPECT_EQ(accelerator.process_index(), 0);
  EXPECT_EQ(accelerator.local_process_index(), 0);
  EXPECT_EQ(accelerator.distributed_type(), accelerant::dist::DistributedType::no);
  EXPECT_FALSE(accelerator.split_batches());
  EXPECT_TRUE(accelerator.even_batches());
  EXPECT_TRUE(accelerator.non_blocking());
  EXPECT_EQ(accelerator.dispatch_batches(), std::nullopt);
  EXPECT_EQ(accelerator.project_dir(), "");
}

TEST(AcceleratorOptionsTest, TheDeviceIsTheGpuWhereThereIsOne) {
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.device().type(), torch::cuda::is_available() ? at::kCUDA : at::kCPU);
}

TEST(AcceleratorOptionsTest, TheEnvironmentFillsWhatIsLeftOut) {
  const Variable precision("ACCELERATE_MIXED_PRECISION", "bf16");
  const Variable steps("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "5");
  const Variable cpu("ACCELERATE_USE_CPU", "True");
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.mixed_precision(), Precision::bf16);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 5);
  EXPECT_TRUE(accelerator.device().is_cpu());
}

TEST(AcceleratorOptionsTest, AnExplicitOptionWinsOverTheEnvironment) {
  const Variable precision("ACCELERATE_MIXED_PRECISION", "nonsense");
  const Variable steps("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "-5");
  const Variable device("ACCELERATE_TORCH_DEVICE", "nowhere");
  const Accelerator accelerator({.device = at::Device(at::kCPU),
                                 .mixed_precision = Precision::fp16,
                                 .gradient_accumulation = {.steps = 2}});
  EXPECT_EQ(accelerator.mixed_precision(), Precision::fp16);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 2);
}

TEST(AcceleratorOptionsTest, TheDeviceFromTheEnvironment) {
  const Variable device("ACCELERATE_TORCH_DEVICE", "cpu");
  EXPECT_TRUE(Accelerator().device().is_cpu());
}

TEST(AcceleratorOptionsTest, BadVariablesAreNamed) {
  const auto error_with = [](const char* name, const char* value) {
    const Variable variable(name, value);
    const std::string error = error_of([] { Accelerator(); });
    EXPECT_TRUE(contains(error, name));
    return error;
  };
  EXPECT_TRUE(contains(error_with("ACCELERATE_MIXED_PRECISION", "fp8"), "got 'fp8'"));
  EXPECT_TRUE(contains(error_with("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4x"), "'4x'"));
  EXPECT_TRUE(contains(error_with("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "0"), "'0'"));
  EXPECT_TRUE(contains(error_with("ACCELERATE_USE_CPU", "perhaps"), "true or false"));
  EXPECT_TRUE(contains(error_with("ACCELERATE_TORCH_DEVICE", "nowhere"), "'nowhere'"));
  EXPECT_TRUE(contains(error_with("WORLD_SIZE", "2"), "WORLD_SIZE=2"));
  EXPECT_TRUE(contains(error_with("OMPI_COMM_WORLD_SIZE", "4"), "OMPI_COMM_WORLD_SIZE=4"));
}

TEST(AcceleratorOptionsTest, BadOptionsAreRefused) {
  const auto refused = [](const AcceleratorOptions& options) {
    return error_of([&] { Accelerator{options}; });
  };
  EXPECT_TRUE(contains(refused({.cpu = true, .gradient_accumulation = {.steps = 0}}),
                       "gradient_accumulation.steps is out of range"));
  EXPECT_TRUE(contains(refused({.cpu = true, .gradient_accumulation = {.steps = -3}}), "got -3"));
  EXPECT_TRUE(contains(refused({.cpu = true, .data_loader = {.workers = -1}}), "workers"));
  EXPECT_TRUE(contains(refused({.cpu = true, .data_loader = {.prefetch = 0}}), "prefetch"));
  EXPECT_TRUE(contains(refused({.cpu = true, .device = at::Device(at::kCUDA)}), "contradict"));
  EXPECT_TRUE(contains(refused({.device = at::Device(at::kXPU)}), "cannot be used"));
  EXPECT_TRUE(contains(
      refused({.cpu = true, .mixed_precision = Precision::fp16, .scaler = {.growth_factor = 0.5}}),
      "growth"));
}

TEST(AcceleratorOptionsTest, TheScalerFollowsThePrecision) {
  Accelerator fp16({.cpu = true,
                    .mixed_precision = Precision::fp16,
                    .scaler = {.init_scale = 8, .growth_interval = 7}});
  EXPECT_TRUE(fp16.scaler().is_enabled());
  EXPECT_EQ(fp16.scaler().get_scale(), 8);
  EXPECT_EQ(fp16.scaler().get_growth_interval(), 7);
  EXPECT_FALSE(Accelerator(on_cpu(Precision::bf16)).scaler().is_enabled());
  EXPECT_FALSE(Accelerator(on_cpu(Precision::no)).scaler().is_enabled());
  EXPECT_FALSE(
      Accelerator({.cpu = true, .mixed_precision = Precision::fp16, .scaler = {.enabled = false}})
          .scaler()
          .is_enabled());
}

TEST(AcceleratorOptionsTest, TheLoggingFolderIsTheProjectsUnlessNamed) {
  EXPECT_EQ(Accelerator({.cpu = true, .project = {.dir = "runs/a"}}).logging_dir(), "runs/a");
  const Accelerator named({.cpu = true, .project = {.dir = "runs/a", .logging_dir = "logs"}});
  EXPECT_EQ(named.project_dir(), "runs/a");
  EXPECT_EQ(named.logging_dir(), "logs");
}

TEST(AcceleratorOptionsTest, Epochs) {
  Accelerator accelerator({.cpu = true});
  std::vector<int64_t> epochs;
  for (const auto epoch : accelerator.epochs(3)) epochs.push_back(epoch);
  EXPECT_EQ(epochs, (std::vector<int64_t>{0, 1, 2}));
  for ([[maybe_unused]] const auto epoch : accelerator.epochs(0)) ADD_FAILURE();
  EXPECT_TRUE(contains(error_of([&] { accelerator.epochs(-1); }), "got -1"));
}

TEST(AcceleratorOptionsTest, WhatOneProcessOfManyDoes) {
  const Accelerator accelerator({.cpu = true});
  int calls = 0;
  accelerator.on_main_process([&] { ++calls; });
  accelerator.on_local_main_process([&] { ++calls; });
  accelerator.on_last_process([&] { ++calls; });
  accelerator.on_process(0, [&] { ++calls; });
  accelerator.on_local_process(0, [&] { ++calls; });
  accelerator.on_process(1, [&] { ADD_FAILURE(); });
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(accelerator.on_main_process([] { return 7; }), std::optional(7));
  EXPECT_EQ(accelerator.on_process(3, [] { return 7; }), std::nullopt);
}

TEST(AcceleratorOptionsTest, TheTriggerIsSeenOnce) {
  Accelerator accelerator({.cpu = true});
  EXPECT_FALSE(accelerator.check_trigger());
  accelerator.set_trigger();
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
}

TEST(AcceleratorOptionsTest, PrintWritesALine) {
  const Accelerator accelerator({.cpu = true});
  testing::internal::CaptureStdout();
  accelerator.print("epoch", 3, "loss", 0.5);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "epoch 3 loss 0.5\n");
}

TEST(AcceleratorOptionsTest, OneProcessKeepsAllOfWhatIsSplit) {
  const Accelerator accelerator({.cpu = true});
  const std::map<std::string, std::vector<int>> values = {{"a", {1, 2, 3}}};
  EXPECT_EQ(accelerator.split_between_processes(values.at("a")), values.at("a"));
  EXPECT_EQ(accelerator.split_between_processes(values), values);
}

}  // namespace
}  // namespace accelerator_test
