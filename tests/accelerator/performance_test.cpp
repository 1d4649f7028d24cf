// Performance options: what they set, what they leave alone, what is refused.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <accelerant/nn/layers.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

#include "accelerator/helpers.h"
#include "accelerator/prepared/module_access.h"
#include "core/cpu_affinity.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::PerformanceOptions;

Accelerator accelerator_with(const PerformanceOptions& performance) {
  auto options = on_cpu();
  options.performance = performance;
  return Accelerator(options);
}

// Restores libtorch's settings.
class Performance : public testing::Test {
 protected:
  void TearDown() override {
    auto& context = at::globalContext();
    context.setAllowTF32CuBLAS(false);
    context.setAllowTF32CuDNN(true);
    context.setAllowFP16ReductionCuBLAS(true);
    context.setAllowBF16ReductionCuBLAS(true);
    context.setBenchmarkCuDNN(false);
    at::set_num_threads(threads_);
    sched_setaffinity(0, sizeof cores_, &cores_);
  }
  void SetUp() override { sched_getaffinity(0, sizeof cores_, &cores_); }

  int threads_ = at::get_num_threads();
  cpu_set_t cores_ = {};
};

TEST_F(Performance, LeavesLibtorchAloneByDefault) {
  auto& context = at::globalContext();
  context.setBenchmarkCuDNN(true);
  context.setAllowTF32CuBLAS(true);
  const Accelerator accelerator(on_cpu());
  EXPECT_TRUE(context.benchmarkCuDNN());
  EXPECT_TRUE(context.allowTF32CuBLAS());
  EXPECT_EQ(at::get_num_threads(), threads_);
}

TEST_F(Performance, SetsWhatIsAskedFor) {
  auto& context = at::globalContext();
  const auto fp16_allowed = context.allowFP16ReductionCuBLAS();
  const auto bf16_allowed = context.allowBF16ReductionCuBLAS();
  for (const bool on : {true, false}) {
    accelerator_with({.allow_tf32 = on,
                      .allow_fp16_reduced_precision_reduction = on,
                      .allow_bf16_reduced_precision_reduction = on,
                      .cudnn_benchmark = on});
    EXPECT_EQ(context.allowTF32CuBLAS(), on);
    EXPECT_EQ(context.allowTF32CuDNN(), on);
    EXPECT_EQ(context.allowFP16ReductionCuBLAS() == fp16_allowed, on);
    EXPECT_EQ(context.allowBF16ReductionCuBLAS() == bf16_allowed, on);
    EXPECT_EQ(context.benchmarkCuDNN(), on);
  }
}

TEST_F(Performance, SetsThreads) {
  accelerator_with({.cpu_threads = 1});
  EXPECT_EQ(at::get_num_threads(), 1);
  accelerator_with({.cpu_threads = 2});
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_TRUE(
      contains(error_of([] { accelerator_with({.cpu_threads = 0}); }), "performance.cpu_threads"));
}

TEST_F(Performance, KeepsToTheCoresItIsGiven) {
  const int core = accelerant::usable_cpus().back().number;
  accelerator_with({.cpu_affinity = std::to_string(core)});
  cpu_set_t now = {};
  sched_getaffinity(0, sizeof now, &now);
  EXPECT_EQ(CPU_COUNT(&now), 1);
  EXPECT_TRUE(CPU_ISSET(core, &now));
  EXPECT_EQ(at::get_num_threads(), 1);
}

TEST_F(Performance, OneProcessKeepsAllCoresWithAuto) {
  const Variable affinity("ACCELERATE_CPU_AFFINITY", "1");
  const auto before = accelerant::usable_cpus().size();
  const Accelerator accelerator(on_cpu());
  EXPECT_EQ(accelerator.options().performance.cpu_affinity, "auto");
  EXPECT_EQ(accelerant::usable_cpus().size(), before);
}

TEST_F(Performance, RefusesCoresItCannotUnderstandOrUse) {
  for (const char* list : {"two", "3-1", "1,", "0--2", "-1", "99999999999", "0-3x"}) {
    EXPECT_TRUE(
        contains(error_of([&] { accelerator_with({.cpu_affinity = list}); }), "A list of cores"))
        << list;
  }
  EXPECT_TRUE(contains(error_of([] { accelerator_with({.cpu_affinity = "1023"}); }),
                       "cannot run on the cores"));
  const Variable affinity("ACCELERATE_CPU_AFFINITY", "perhaps");
  EXPECT_TRUE(
      contains(error_of([] { Accelerator accelerator(on_cpu()); }), "ACCELERATE_CPU_AFFINITY"));
}

TEST_F(Performance, RefusesSettingsThatTheAllocatorDoesNotKnow) {
  EXPECT_TRUE(
      contains(error_of([] { accelerator_with({.gpu_allocator = "max_split_size_mb:many"}); }),
               "performance.gpu_allocator"));
  accelerator_with({.gpu_allocator = "garbage_collection_threshold:0.8"});
}

TEST(CpuList, KnowsNumbersAndRanges) {
  EXPECT_EQ(accelerant::parse_cpu_list("3"), (std::vector<int>{3}));
  EXPECT_EQ(accelerant::parse_cpu_list("8,0-2,1"), (std::vector<int>{0, 1, 2, 8}));
}

TEST(CpuList, IsDividedByPackagesAndCores) {
  // Two packages with two cores each and two threads per core, numbered as on Linux.
  std::vector<accelerant::Cpu> cpus;
  for (int number = 0; number < 8; ++number) {
    cpus.push_back({.number = number, .package = number / 2 % 2, .core = number % 2});
  }
  EXPECT_EQ(accelerant::part_of(cpus, 0, 2), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(accelerant::part_of(cpus, 1, 2), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(accelerant::part_of(cpus, 0, 4), (std::vector<int>{0, 4}));
  EXPECT_EQ(accelerant::part_of(cpus, 2, 3).size(), 3U);
  EXPECT_EQ(accelerant::part_of({{.number = 5}}, 3, 4), (std::vector<int>{5}));
}

// --- Models ---------------------------------------------------------------------------------------

struct ConvNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(3, 8, 3))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(8))};
  torch::nn::Conv2d second{register_module("second", torch::nn::Conv2d(8, 8, 3))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 2))};
  torch::Tensor forward(const torch::Tensor& x) {
    inner = second(torch::relu(norm(conv(x))));
    return head(inner.mean({2, 3}));
  }
  torch::Tensor inner;
};
TORCH_MODULE(ConvNet);

TEST(ChannelsLast, IsTheLayoutOfWeightsAndWhatTheyCompute) {
  ConvNet net;
  const auto weight = net->conv->weight.detach().clone();
  const auto x = torch::randn({2, 3, 9, 9});
  net->eval();
  const auto plain = net->forward(x);
  EXPECT_FALSE(net->inner.is_contiguous(at::MemoryFormat::ChannelsLast));

  auto options = on_cpu();
  options.performance.channels_last = true;
  Accelerator accelerator(options);
  auto model = accelerator.prepare(net);
  EXPECT_TRUE(net->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::equal(net->conv->weight, weight));
  EXPECT_TRUE(net->conv->weight.is_leaf());
  const auto output = model(x);
  EXPECT_TRUE(net->inner.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::allclose(output, plain, 1e-4, 1e-5));
  accelerator.backward(output.sum());
  EXPECT_TRUE(net->conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(SlowModules, AreNamed) {
  torch::nn::Sequential net;
  for (int i = 0; i < 5; ++i) net->push_back(torch::nn::Linear(2, 2));
  const std::string advice = accelerant::detail::slow_modules_advice(*net);
  EXPECT_TRUE(contains(advice, "0, 1, 2 and 2 more: torch::nn::Linear"));
  EXPECT_TRUE(contains(advice, "accelerant/nn/layers.h"));
}

TEST(SlowModules, DoNotIncludeTheirDropIns) {
  torch::nn::Sequential net(accelerant::nn::Linear(2, 2), torch::nn::ReLU(),
                            torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
  EXPECT_EQ(accelerant::detail::slow_modules_advice(*net), "");
}

TEST(SlowModules, AreToldOnceForAModelOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::nn::Sequential net(torch::nn::Linear(2, 2));
  const GatheredLog log;
  Accelerator accelerator;
  auto model = accelerator.prepare(net);
  auto again = accelerator.prepare(net);
  EXPECT_EQ(std::count_if(log.messages().begin(), log.messages().end(),
                          [](const auto& text) { return text.find("nn::Linear") != text.npos; }),
            1);
}

}  // namespace
}  // namespace accelerator_test
