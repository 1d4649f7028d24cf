// GradScaler: lifetimes, threads, streams, sizes.
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/optim/clip_grad.h>
#include <amp/unscale.h>

#include <thread>

#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

using accelerant::GradScaler;

class Robustness : public OnDevice {};
ON_EVERY_DEVICE(Robustness);

TEST_P(Robustness, OptimizersMayBeGoneBeforeUpdate) {
  GradScaler scaler = started_scaler(device(), 4.0);
  {
    torch::optim::SGD optimizer({parameter_with_grad(full({2}, kInf))}, 1.0);
    scaler.step(optimizer);
  }
  EXPECT_EQ(scaler.overflow_report().parameters.at(0).inf_count, 2);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST_P(Robustness, ThreadsWithTheirOwnScalersDoNotMeet) {
  const auto train = [this](bool overflow, double* final_scale) {
    GradScaler scaler = started_scaler(device(), 1024.0);
    for (int i = 0; i < 20; ++i) {
      torch::optim::SGD optimizer(
          {parameter_with_grad(full({100}, overflow && i % 2 == 0 ? kInf : 1.0))}, 1.0);
      scaler.step(optimizer);
      scaler.update();
    }
    *final_scale = scaler.get_scale();
  };
  double clean = 0;
  double backed_off = 0;
  std::thread first(train, false, &clean);
  std::thread second(train, true, &backed_off);
  first.join();
  second.join();
  EXPECT_EQ(clean, 1024.0);
  EXPECT_EQ(backed_off, 1.0);
}

TEST_P(Robustness, OneFlagHoweverTheDeviceIsNamed) {
  at::Tensor first = parameter_with_grad(torch::ones({2}, at::Device(GetParam())));  // no index
  at::Tensor second = parameter_with_grad(torch::ones({2}, device()));
  torch::optim::SGD optimizer({first, second}, 1.0);
  GradScaler scaler = started_scaler(at::Device(GetParam()));
  scaler.unscale_(optimizer);
  EXPECT_EQ(scaler.found_inf(optimizer).size(), 1U);
}

#if defined(ACCELERANT_WITH_CUDA)
TEST(RobustnessOnCuda, WorkGoesToTheCurrentStream) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto stream = c10::cuda::getStreamFromPool();
  at::Tensor parameter;
  std::optional<torch::optim::SGD> optimizer;
  std::optional<GradScaler> scaler;
  const c10::cuda::CUDAStreamGuard guard(stream);
  scaler.emplace(started_scaler(at::Device(at::kCUDA, 0), 4.0));
  for (int i = 0; i < 50; ++i) {
    // A long kernel before the gradient is ready: work on another stream would see zeros.
    at::Tensor big = torch::randn({2048, 2048}, at::kCUDA);
    big = big.mm(big);
    at::Tensor gradient = torch::zeros({1024}, at::kCUDA);
    gradient.add_((big.sum() * 0).nan_to_num(0, 0, 0) + 4.0);
    parameter = parameter_with_grad(gradient);
    optimizer.emplace(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(1.0));
    scaler->unscale_(*optimizer);
    EXPECT_TRUE(all_equal(parameter.grad(), 1.0));
    scaler->step(*optimizer);
    scaler->update();
  }
  EXPECT_EQ(growth_tracker(*scaler), 50);
}

TEST(RobustnessOnCuda, NothingWaitsUnlessAsked) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  at::Tensor parameter = parameter_with_grad(torch::full({1000}, 4.0, at::kCUDA));
  FusedAdam optimizer({parameter});
  GradScaler scaler = started_scaler(at::Device(at::kCUDA, 0), 4.0);
  scaler.step(optimizer);
  scaler.update();
  torch::cuda::synchronize();

  auto& state = c10::cuda::warning_state();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  std::vector<accelerant::StepResult> results;
  for (int i = 0; i < 5; ++i) {
    parameter.mutable_grad().fill_(i == 3 ? kInf : 4.0);
    const at::Tensor loss = scaler.scale(parameter.sum());
    if (i % 2 == 1) {
      scaler.unscale_(optimizer);
      accelerant::clip_grad_norm_({parameter}, 1.0);
    }
    results.push_back(scaler.step(optimizer));
    results.back().poll();
    scaler.update();
    scaler.status();
  }
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(results[static_cast<std::size_t>(i)].skipped(), i == 3);
    EXPECT_EQ(results[static_cast<std::size_t>(i)].poll(), std::optional(i == 3));
  }
  torch::cuda::synchronize();
  EXPECT_EQ(scaler.status().skips, 1);
  EXPECT_EQ(scaler.status().last_skip, 5);
}
#else
TEST(RobustnessOnCuda, WorkGoesToTheCurrentStream) { GTEST_SKIP() << "built without CUDA"; }
TEST(RobustnessOnCuda, NothingWaitsUnlessAsked) { GTEST_SKIP() << "built without CUDA"; }
#endif

TEST_P(Robustness, GradientsMayBeAllocatedAfreshEachIteration) {
  at::Tensor parameter = torch::zeros({64}, options()).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad(/*set_to_none=*/true);
    scaler.scale(parameter.sum()).backward();
    EXPECT_FALSE(scaler.step(optimizer).skipped());
    scaler.update();
  }
  EXPECT_TRUE(all_equal(parameter, -5.0));
}

TEST_P(Robustness, UnscalesOddSizesAtUnalignedOffsets) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (int64_t size = 1; size <= 17; ++size) {
      for (int64_t offset = 0; offset < 4; ++offset) {
        const at::Tensor base = full({32}, 4.0, type);
        const at::Tensor gradient = base.narrow(0, offset, size);
        const at::Tensor found_inf = full({}, 0.0);
        accelerant::non_finite_check_and_unscale_({gradient}, found_inf, full({}, 0.25));
        EXPECT_TRUE(all_equal(gradient, 1.0));
        EXPECT_TRUE(all_equal(base.narrow(0, offset + size, 32 - offset - size), 4.0));
        EXPECT_EQ(found_inf.item<float>(), 0.0F);
        gradient[size - 1] = kInf;
        accelerant::non_finite_check_and_unscale_({gradient}, found_inf, full({}, 0.25));
        EXPECT_EQ(found_inf.item<float>(), 1.0F);
      }
    }
  }
}

TEST_P(Robustness, ChecksTenThousandTinyTensors) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 10000; ++i) parameters.push_back(parameter_with_grad(full({i % 5 + 1}, 4.0)));
  torch::optim::SGD optimizer(parameters, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  EXPECT_FALSE(found(scaler, optimizer));
  for (const int i : {0, 777, 9999}) EXPECT_TRUE(all_equal(parameters[i].grad(), 1.0));
  parameters[9999].mutable_grad()[0] = kNan;
  scaler.update();
  scaler.unscale_(optimizer);
  const auto report = scaler.overflow_report();
  ASSERT_EQ(report.parameters.size(), 1U);
  EXPECT_EQ(report.parameters[0].name, "group 0 parameter 9999");
}

TEST_P(Robustness, UnscalesMoreThanTwoToThe31Elements) {
  if (!on_cuda()) GTEST_SKIP() << "takes 2 GiB of fast memory; run on the GPU";
  const int64_t size = (int64_t{1} << 31) + 5;
  const at::Tensor gradient = full({size}, 4.0, at::kHalf);
  gradient[size - 1] = kInf;
  const at::Tensor found_inf = full({}, 0.0);
  accelerant::non_finite_check_and_unscale_({gradient}, found_inf, full({}, 0.25));
  EXPECT_EQ(found_inf.item<float>(), 1.0F);
  EXPECT_EQ(gradient[size - 2].item<double>(), 1.0);
  EXPECT_EQ(gradient[0].item<double>(), 1.0);
}

TEST_P(Robustness, RunsAreBitIdentical) {
  const auto run = [&] {
    torch::manual_seed(9);
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 20; ++i) {
      parameters.push_back(parameter_with_grad(torch::randn({1000 + i * 37}, options())));
    }
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
    GradScaler scaler = started_scaler(device(), 3.0);
    scaler.unscale_(optimizer);
    const at::Tensor norm = accelerant::clip_grad_norm_(parameters, 1.0);
    scaler.step(optimizer);
    std::vector<at::Tensor> values{norm.view({1})};
    for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach());
    return torch::cat(values);
  };
  EXPECT_TRUE(torch::equal(run(), run()));
}

TEST_P(Robustness, SkippedIsTrueAlsoWhenGrowthAndSkipMeet) {
  // Two optimizers, one with an overflow, and growth due at this very update. Comparing the scales
  // before and after would be misleading; the result is right.
  at::Tensor clean = parameter_with_grad(full({2}, 1.0));
  at::Tensor bad = parameter_with_grad(full({2}, kNan));
  torch::optim::SGD plain({clean}, 1.0);
  FusedAdam fused({bad});
  GradScaler scaler = started_scaler(
      device(), accelerant::GradScalerOptions{.init_scale = 4, .growth_interval = 1});
  const auto plain_result = scaler.step(plain);
  const auto fused_result = scaler.step(fused);
  const at::Tensor flag = scaler.found_inf(fused).at(0);  // visible without a wait, as a tensor
  scaler.update();
  EXPECT_FALSE(plain_result.skipped());
  EXPECT_TRUE(fused_result.skipped());
  EXPECT_EQ(fused_result.poll(), std::optional(true));
  EXPECT_EQ(flag.item<float>(), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST_P(Robustness, ScheduleWaitsForSkippedSteps) {
  at::Tensor parameter = torch::zeros({2}, options()).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  auto& settings = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
  GradScaler scaler = started_scaler(device(), 4.0);
  for (const bool overflow : {false, true, true, false}) {
    parameter.mutable_grad() = full({2}, overflow ? kInf : 1.0);
    if (!scaler.step(optimizer).skipped()) settings.lr(settings.lr() / 2);
    scaler.update();
  }
  EXPECT_EQ(settings.lr(), 0.25);
}

TEST_P(Robustness, ScalersCanBeMoved) {
  GradScaler scaler = started_scaler(device(), 4.0);
  torch::optim::SGD optimizer({parameter_with_grad(full({2}, 4.0))}, 1.0);
  scaler.unscale_(optimizer);
  GradScaler moved = std::move(scaler);
  EXPECT_FALSE(moved.step(optimizer).skipped());
  moved.update();
  EXPECT_EQ(growth_tracker(moved), 1);
}

TEST_P(Robustness, OverflowReportNamesParameters) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  model->to(device());
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.name_parameters(std::map<std::string, at::Tensor>{{"bias", model->parameters()[1]}}, "0.");
  scaler.name_parameters(model->named_parameters());
  for (at::Tensor& parameter : model->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  scaler.step(optimizer);
  EXPECT_TRUE(scaler.overflow_report().parameters.empty());
  scaler.update();

  for (at::Tensor& parameter : model->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  model->parameters()[2].mutable_grad()[1] = kInf;  // a row of 4
  model->parameters()[2].mutable_grad()[0][0] = kNan;
  scaler.step(optimizer);
  optimizer.zero_grad();  // the report does not need the gradients
  for (int when = 0; when < 2; ++when) {
    const auto report = scaler.overflow_report();
    ASSERT_EQ(report.parameters.size(), 1U);
    EXPECT_EQ(report.parameters[0].name, "1.weight");
    EXPECT_EQ(report.parameters[0].shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(report.parameters[0].inf_count, 4);
    EXPECT_EQ(report.parameters[0].nan_count, 1);
    EXPECT_EQ(report.to_string(), "1.weight [2, 4]: 4 inf, 1 nan\n");
    if (when == 0) scaler.update();  // and ask again after the update
  }
}

// A nan makes the norm nan, and clipping then spoils every gradient; only one is to blame.
TEST_P(Robustness, OverflowReportBlamesTheCauseAlsoAfterClipping) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 4; ++i) parameters.push_back(parameter_with_grad(full({3}, 4.0)));
  parameters[2].mutable_grad()[1] = kNan;
  torch::optim::SGD optimizer(parameters, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  accelerant::clip_grad_norm_(parameters, 1.0);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  const auto report = scaler.overflow_report();
  ASSERT_EQ(report.parameters.size(), 1U);
  EXPECT_EQ(report.parameters[0].name, "group 0 parameter 2");
  EXPECT_EQ(report.parameters[0].nan_count, 1);
}

TEST_P(Robustness, OverflowReportNamesWhatWasSpoiledAfterUnscale) {
  at::Tensor written = parameter_with_grad(full({3}, 4.0));
  at::Tensor replaced = parameter_with_grad(full({3}, 4.0));
  torch::optim::SGD optimizer({written, replaced}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.unscale_(optimizer);
  written.mutable_grad()[0] = kInf;
  scaler.step(optimizer);
  ASSERT_EQ(scaler.overflow_report().parameters.size(), 1U);
  EXPECT_EQ(scaler.overflow_report().parameters[0].name, "group 0 parameter 0");
  scaler.update();

  written.mutable_grad().fill_(4.0);
  scaler.unscale_(optimizer);
  replaced.mutable_grad() = full({3}, kNan);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_EQ(scaler.found_inf(optimizer).size(), 1U);  // still one flag for the device
  ASSERT_EQ(scaler.overflow_report().parameters.size(), 1U);
  EXPECT_EQ(scaler.overflow_report().parameters[0].nan_count, 3);
}

TEST_P(Robustness, ReductionIsCalledOncePerCheckAlsoWithoutGradients) {
  for (const bool fused : {false, true}) {
    at::Tensor parameter = full({3}, 0.0).requires_grad_();
    FusedAdam fused_adam({parameter});
    torch::optim::SGD sgd({parameter}, 1.0);
    torch::optim::Optimizer& optimizer =
        fused ? static_cast<torch::optim::Optimizer&>(fused_adam) : sgd;
    GradScaler scaler = started_scaler(device(), 4.0);
    int calls = 0;
    scaler.set_found_inf_reduction([&](at::Tensor& found_inf) {
      ++calls;
      EXPECT_EQ(found_inf.item<float>(), 0.0F);
      found_inf.fill_(3.0);  // another process has an overflow
    });
    EXPECT_TRUE(scaler.step(optimizer).skipped());
    EXPECT_EQ(calls, 1);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
    scaler.unscale_(optimizer);
    EXPECT_EQ(calls, 2);
    scaler.step(optimizer);
    EXPECT_EQ(calls, 3);
  }
}

TEST_P(Robustness, BackwardNoticesThatTheScaleHasChanged) {
  at::Tensor parameter = parameter_with_grad(full({3}, 1.0));
  torch::optim::SGD optimizer({parameter}, 1.0);
  GradScaler scaler = started_scaler(device(), 4.0);
  const at::Tensor scaled = scaler.scale(parameter.sum());
  scaler.unscale_(optimizer);
  scaler.update();
  EXPECT_THROW(scaled.backward(), c10::Error);  // as in PyTorch: the old scale is gone
}

TEST_P(Robustness, FirstUseInInferenceModeDoesNotSpoilTraining) {
  GradScaler scaler({.device = GetParam(), .init_scale = 4.0});
  {
    const c10::InferenceMode inference;
    scaler.scale(full({}, 1.0));
  }
  at::Tensor parameter = full({3}, 1.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  scaler.scale(parameter.sum()).backward();
  EXPECT_FALSE(scaler.step(optimizer).skipped());
  scaler.update();
  EXPECT_TRUE(all_equal(parameter, 0.0));
}

}  // namespace
