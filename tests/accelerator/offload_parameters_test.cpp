// AcceleratorOptions::offload.parameters: parameters that come and go in prepared models.
#include <accelerant/paging/offload.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "accelerator/core.h"
#include "accelerator/offload/paged_model.h"
#include "accelerator/offloaded_training.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/run_anew_backend.h"
#include "paging/residency.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::paging::is_paged;

// On the CPU, everything is copied as if it were another device, and every parameter is paged.
class OffloadParameters : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    accelerant::detail::pages_on_every_device() = true;
  }
  void TearDown() override { accelerant::detail::pages_on_every_device() = false; }

  OffloadSetup setup_with(bool pages, Precision precision = Precision::no,
                          int64_t steps = 1) const {
    OffloadSetup setup{.keeping = on_cuda() ? Keeping::on_host : Keeping::apart};
    setup.options = {.device = device(),
                     .mixed_precision = precision,
                     .gradient_accumulation = {.steps = steps},
                     .scaler = {.init_scale = 1024, .growth_interval = 3}};
    setup.options.offload.parameters = pages;
    if (pages) setup.options.offload.budget = 0;  // absent after each operator
    return setup;
  }
};

TEST_P(OffloadParameters, TrainToTheSameBits) {
  at::globalContext().setDeterministicCuDNN(true);
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int64_t steps : {1, 3}) {
      OffloadedTraining expected(setup_with(false, precision, steps));
      expected.run();
      OffloadedTraining training(setup_with(true, precision, steps));
      EXPECT_TRUE(is_paged(training.net->conv->weight));
      training.run();
      EXPECT_TRUE(is_paged(training.net->conv->weight));
      expect_same_training(training, expected);
    }
  }
}

TEST_P(OffloadParameters, AreSavedAndResumed) {
  for (const bool before : {false, true}) {
    for (const bool after : {false, true}) {
      OffloadedTraining whole(setup_with(false));
      whole.run();
      const TempFolder folder;
      {
        OffloadedTraining first(setup_with(before));
        for (int64_t i = 0; i < 6; ++i) first.batch(i);
        first.accelerator.save_state(folder.path("state"));
        first.accelerator.save_model(first.model, folder.path("model"));
      }
      OffloadedTraining second(setup_with(after));
      for (int64_t i = 20; i < 22; ++i) second.batch(i);
      second.accelerator.load_state(folder.path("state"));
      second.run(6);
      expect_bits(second.state(), whole.state());
    }
  }
}

TEST_P(OffloadParameters, StayWithinTheBudgetAndComeAhead) {
  OffloadSetup setup = setup_with(true);
  setup.options.offload.budget = 1 << 20;
  OffloadedTraining training(setup);
  for (int64_t i = 0; i < 4; ++i) training.batch(i);
  const auto& pager =
      accelerant::detail::core_of(training.accelerator).models.all().front()->paged()->pager();
  EXPECT_EQ(pager.options().budget, 1U << 20);
  EXPECT_LE(pager.statistics().peak_bytes, 1U << 20);
  EXPECT_GT(pager.statistics().fetches, 0U);
}

TEST_P(OffloadParameters, AreEvaluatedWithoutAnOptimizer) {
  OffloadedNet net;
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({3, 18});
  const at::Tensor expected = net->forward(x).detach();
  {
    accelerant::AcceleratorOptions options{.device = device()};
    options.offload = {.parameters = true, .budget = 0};
    Accelerator accelerator(options);
    const auto model = accelerator.prepare(net);
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(model(x.to(device())).cpu(), expected, 1e-4, 1e-5));
    }
  }
  EXPECT_FALSE(is_paged(net->conv->weight));  // ordinary again
  EXPECT_TRUE(net->forward(x).equal(expected));
}

TEST_P(OffloadParameters, NeedAnOffloadedOptimizer) {
  accelerant::AcceleratorOptions options{.device = device()};
  options.offload.parameters = true;
  Accelerator accelerator(options);
  OffloadedNet net;
  torch::optim::SGD sgd(net->out->parameters(), 0.1);
  const auto model = accelerator.prepare(net);
  EXPECT_TRUE(
      contains(whole_error_of([&] { accelerator.prepare(sgd); }), "offload.optimizer = true"));
}

ON_EVERY_DEVICE(OffloadParameters);

RANK_TEST(OffloadParametersRanks, AreOnlyEvaluated, 2) {
  auto options = on_cpu();
  options.offload = {.parameters = true, .optimizer = true};
  Accelerator accelerator(options);
  OffloadedNet net;
  EXPECT_TRUE(contains(whole_error_of([&] { accelerator.prepare(net); }),
                       "Parameters cannot be paged in several processes that train them"));
  const auto model = accelerator.prepare_model(net, {.evaluation_mode = true});
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(model(torch::ones({2, 18})).equal(net->forward(torch::ones({2, 18}))));
}

struct WideNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last(first(x).tanh()); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(400, 400));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(400, 2));
};
TORCH_MODULE(WideNet);

// What fits into the budget is an ordinary model: nothing has to be on the host, and steps may be
// captured.
TEST(OffloadParametersThatFit, AreOrdinary) {
  auto options = on_cpu();
  options.offload = {.parameters = true, .budget = uint64_t{1} << 20};
  Accelerator accelerator(options);
  run_steps_anew(accelerator);
  WideNet net;
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  EXPECT_FALSE(is_paged(net->first->weight));
  auto step = accelerator.capture([&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
    accelerator.backward(model(x).square().sum());
    optimizer.step();
    optimizer.zero_grad();
  });
  for (int i = 0; i < 6; ++i) step(torch::ones({2, 400}));
  EXPECT_TRUE(step.is_captured());
}

TEST(OffloadParametersThatFit, AreCapturedOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto train = [](bool offloads) {
    accelerant::AcceleratorOptions options{.device = at::Device(at::kCUDA, 0)};
    if (offloads) options.offload = {.parameters = true, .budget = uint64_t{1} << 20};
    Accelerator accelerator(options);
    torch::manual_seed(3);
    WideNet net;
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    auto step =
        accelerator.capture([&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
          accelerator.backward(model(x).square().sum());
          optimizer.step();
          optimizer.zero_grad();
        });
    for (int i = 0; i < 12; ++i) step(torch::ones({2, 400}, at::Device(at::kCUDA, 0)));
    EXPECT_TRUE(step.is_captured());
    return net->first->weight.detach().clone();
  };
  EXPECT_TRUE(torch::allclose(train(true), train(false), 1e-5, 1e-7));
}

TEST(OffloadParametersThatFit, OneByteLessIsTooLittle) {
  const auto prepare_within = [](uint64_t budget) {
    auto options = on_cpu();
    options.offload = {.parameters = true, .budget = budget};
    Accelerator accelerator(options);
    WideNet net;
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    accelerator.prepare(net, adamw);
  };
  const uint64_t enough = accelerant::paging::aligned_for_block(400 * 400 * sizeof(float));
  prepare_within(enough);
  EXPECT_TRUE(contains(whole_error_of([&] { prepare_within(enough - 1); }),
                       "models that fit into offload.budget"));
}

TEST(OffloadParametersThatFit, TiedWeightsCountOnce) {
  const torch::nn::Linear layer(400, 400);
  torch::nn::Module net;
  net.register_module("first", layer.ptr());
  net.register_module("again", layer.ptr());
  const uint64_t enough = accelerant::paging::aligned_for_block(400 * 400 * sizeof(float));
  EXPECT_FALSE(accelerant::detail::PagedModel::is_needed(net, enough));
  EXPECT_TRUE(accelerant::detail::PagedModel::is_needed(net, enough - 1));
}

// What was trained goes back to the host, which has room for it, and never as a whole to the device.
TEST(OffloadParametersOnCuda, EndWithoutTheDevicesMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const at::Device device(at::kCUDA, 0);
  torch::nn::Sequential net;
  constexpr int64_t kWidth = 1024;
  for (int i = 0; i < 16; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto& allocator = dynamic_cast<c10::DeviceAllocator&>(*c10::GetAllocator(at::kCUDA));
  const auto peak = [&] { return allocator.getDeviceStats(0).allocated_bytes[0].peak; };
  std::optional<accelerant::Optimizer> optimizer;
  int64_t while_training = 0;
  {
    accelerant::AcceleratorOptions options{.device = device};
    options.offload = {.parameters = true, .optimizer = true};
    Accelerator accelerator(options);
    auto model = accelerator.prepare(net);
    optimizer = accelerator.prepare(adamw);
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(torch::ones({2, kWidth}, device)).sum());
      optimizer->step();
      optimizer->zero_grad();
    }
    while_training = peak();
    allocator.resetPeakStats(0);
  }
  EXPECT_LE(peak(), while_training);
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_EQ(parameter.is_cpu(), parameter.dim() == 2);  // small ones stay on the device
    EXPECT_FALSE(is_paged(parameter));
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

// Files are mapped for reading only.
TEST(PagedByTheProgram, AreTrainedFromFiles) {
  for (const bool on_host : {false, true}) {
    const auto train = [&](bool pages) {
      const TempFolder folder;
      torch::manual_seed(3);
      WideNet net;
      if (pages) {
        accelerant::disk_offload(net, folder.path("offload"), {.execution_device = at::kCPU});
      }
      torch::optim::AdamW adamw(net->parameters(), 1e-3);
      auto options = on_cpu();
      options.offload.optimizer = on_host;
      Accelerator accelerator(options);
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      EXPECT_EQ(is_paged(net->first->weight), pages);
      for (int i = 0; i < 3; ++i) {
        accelerator.backward(model(torch::ones({2, 400})).square().sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      return net->first->weight.detach().clone();
    };
    EXPECT_TRUE(torch::allclose(train(true), train(false), 1e-5, 1e-7));
  }
}

// Parameters that the program pages itself stay as they are.
TEST(PagedByTheProgram, AreTrained) {
  const auto train = [](bool pages) {
    torch::manual_seed(3);
    OffloadedNet net;
    std::optional<accelerant::paging::Pager> pager;
    if (pages) pager.emplace(accelerant::paging::plan_units(*net, {.small_parameter = 0}));
    torch::optim::SGD sgd(net->out->parameters(), 0.1);
    Accelerator accelerator(on_cpu());
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_EQ(is_paged(net->out->weight), pages);
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(torch::ones({2, 18})).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    return net->out->weight.detach().clone();
  };
  EXPECT_TRUE(train(true).equal(train(false)));
}

}  // namespace
}  // namespace accelerator_test
