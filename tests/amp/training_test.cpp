// GradScaler: whole training loops against a control run without a scaler.
#include <accelerant/amp/autocast.h>
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/optim/clip_grad.h>

#include <functional>

#include "support/expect_error.h"
#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

using accelerant::clip_grad_norm_;
using accelerant::GradScaler;

constexpr int kIterations = 4;
constexpr int kOverflowAt = 2;

class Training : public OnDevice {
 protected:
  // A loop over fixed data; `body(i, x, y)` is one iteration. Returns the trained model.
  torch::nn::Sequential loop(
      ModelAndOptimizer& trained,
      const std::function<void(int, const at::Tensor&, const at::Tensor&)>& body) const {
    torch::manual_seed(21);
    for (int i = 0; i < kIterations; ++i) {
      const at::Tensor x = torch::randn({8, 8}, options());
      const at::Tensor y = torch::randn({8, 8}, options());
      body(i, x, y);
    }
    return trained.model;
  }

  // The control for a clipping loop: no scaler, and no step where the scaled run overflows.
  torch::nn::Sequential clipped_control() const {
    auto control = make_model(device(), 1, 0.1);
    return loop(control, [&](int i, const at::Tensor& x, const at::Tensor& y) {
      control.optimizer->zero_grad();
      torch::mse_loss(control.model->forward(x), y).backward();
      clip_grad_norm_(control.model->parameters(), 0.2);
      if (i != kOverflowAt) control.optimizer->step();
    });
  }

  torch::nn::Sequential clipped_with_scaler(bool unscale_first) const {
    auto trained = make_model(device(), 1, 0.1);
    GradScaler scaler({.device = GetParam(), .init_scale = 128, .growth_interval = 1});
    auto model = loop(trained, [&](int i, const at::Tensor& x, const at::Tensor& y) {
      trained.optimizer->zero_grad();
      scaler.scale(torch::mse_loss(trained.model->forward(x), y)).backward();
      if (i == kOverflowAt) trained.model->parameters()[0].mutable_grad()[0][0] = kInf;
      if (unscale_first) {
        scaler.unscale_(*trained.optimizer);
        clip_grad_norm_(trained.model->parameters(), 0.2);
      } else {
        clip_grad_norm_(trained.model->parameters(), 0.2 * scaler.get_scale());
      }
      EXPECT_EQ(scaler.step(*trained.optimizer).skipped(), i == kOverflowAt);
      scaler.update();
    });
    EXPECT_EQ(scaler.get_scale(), 128 * 8 * 0.5);
    return model;
  }
};
ON_EVERY_DEVICE(Training);

TEST_P(Training, ClippingBothWaysEqualsTheControl) {
  const auto control = clipped_control();
  EXPECT_LT(largest_difference(control, clipped_with_scaler(true)), 1e-6);
  EXPECT_LT(largest_difference(control, clipped_with_scaler(false)), 1e-6);
}

TEST_P(Training, ClippingAnInfiniteGradientGivesAnInfiniteNorm) {
  at::Tensor parameter = parameter_with_grad(full({3}, 4.0));
  parameter.mutable_grad()[1] = kInf;
  EXPECT_TRUE(std::isinf(clip_grad_norm_({parameter}, 1.0).item<double>()));
  EXPECT_EQ(parameter.grad()[0].item<double>(), 0.0);
  EXPECT_TRUE(std::isnan(parameter.grad()[1].item<double>()));
  EXPECT_TRUE(
      contains(error_of([&] { clip_grad_norm_({parameter}, 1.0, {.error_if_nonfinite = true}); }),
               "The total norm of order 2.0 for gradients from `parameters` is non-finite"));
}

TEST_P(Training, ClippingBelowTheLimitChangesNothing) {
  at::Tensor zeros = parameter_with_grad(full({3}, 0.0));
  EXPECT_EQ(clip_grad_norm_({zeros}, 1.0).item<double>(), 0.0);
  EXPECT_TRUE(all_equal(zeros.grad(), 0.0));
  at::Tensor small = parameter_with_grad(full({1}, 4.0));
  EXPECT_EQ(clip_grad_norm_({small}, 10.0).item<double>(), 4.0);
  EXPECT_TRUE(all_equal(small.grad(), 4.0));
}

TEST_P(Training, ClippingByOtherNorms) {
  at::Tensor first = parameter_with_grad(full({3}, 4.0));
  at::Tensor second = parameter_with_grad(full({3}, 4.0));
  EXPECT_EQ(clip_grad_norm_({first, second}, 100.0, {.norm_type = 0}).item<double>(), 2.0);
  EXPECT_EQ(clip_grad_norm_({first, second}, 1.0, {.norm_type = kInf}).item<double>(), 4.0);
  EXPECT_FLOAT_EQ(first.grad()[0].item<float>(), 0.99999976F);
}

TEST_P(Training, AccumulationEqualsTheControl) {
  auto control = make_model(device(), 1, 0.1);
  auto trained = make_model(device(), 1, 0.1);
  loop(control, [&](int i, const at::Tensor& x, const at::Tensor& y) {
    (torch::mse_loss(control.model->forward(x), y) / 2).backward();
    if (i % 2 == 0) return;
    control.optimizer->step();
    control.optimizer->zero_grad();
  });
  GradScaler scaler({.device = GetParam(), .init_scale = 128, .growth_interval = 1});
  loop(trained, [&](int i, const at::Tensor& x, const at::Tensor& y) {
    scaler.scale(torch::mse_loss(trained.model->forward(x), y) / 2).backward();
    if (i % 2 == 0) return;
    scaler.step(*trained.optimizer);
    scaler.update();
    trained.optimizer->zero_grad();
  });
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_LT(largest_difference(control.model, trained.model), 1e-6);
}

at::Tensor penalty_of(const at::Tensor& loss, const torch::nn::Sequential& model,
                      double inv_scale) {
  const auto gradients = torch::autograd::grad({loss}, model->parameters(), {}, true, true);
  at::Tensor sum = torch::zeros({}, loss.options());
  for (const at::Tensor& gradient : gradients) sum = sum + (gradient * inv_scale).pow(2).sum();
  return sum.sqrt();
}

TEST_P(Training, GradientPenaltyEqualsTheControl) {
  auto control = make_model(device(), 1, 0.1);
  auto trained = make_model(device(), 1, 0.1);
  loop(control, [&](int, const at::Tensor& x, const at::Tensor& y) {
    control.optimizer->zero_grad();
    const at::Tensor loss = torch::mse_loss(control.model->forward(x), y);
    (loss + penalty_of(loss, control.model, 1.0)).backward();
    control.optimizer->step();
  });
  GradScaler scaler({.device = GetParam(), .init_scale = 128, .growth_interval = 1});
  loop(trained, [&](int, const at::Tensor& x, const at::Tensor& y) {
    trained.optimizer->zero_grad();
    const at::Tensor loss = torch::mse_loss(trained.model->forward(x), y);
    const at::Tensor penalty =
        penalty_of(scaler.scale(loss), trained.model, 1.0 / scaler.get_scale());
    scaler.scale(loss + penalty).backward();
    scaler.step(*trained.optimizer);
    scaler.update();
  });
  EXPECT_LT(largest_difference(control.model, trained.model), 1e-5);
}

#if defined(ACCELERANT_WITH_CUDA)
TEST(CapturedTraining, ForwardAndBackwardInAGraph) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  at::Tensor weight = torch::ones({1}, at::kCUDA).to(at::kHalf).to(at::kFloat).requires_grad_();
  at::Tensor input = torch::ones({1}, torch::TensorOptions().device(at::kCUDA).dtype(at::kHalf));
  torch::optim::SGD optimizer({weight}, 0.1);
  GradScaler scaler({.device = at::kCUDA, .init_scale = 4.0});
  const auto loss_of = [&] { return (weight.to(at::kHalf) * input).sum(); };

  at::cuda::CUDAGraph graph;
  const auto stream = at::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    scaler.scale(loss_of()).backward();  // warm up
    optimizer.zero_grad();
    weight.mutable_grad() = torch::zeros_like(weight);
    graph.capture_begin();
    weight.mutable_grad().zero_();
    scaler.scale(loss_of()).backward();
    graph.capture_end();
  }
  at::cuda::getCurrentCUDAStream().synchronize();
  const double inputs[] = {5, 20000, 5, 40000};
  const double scales[] = {4, 2, 2, 1};
  const int64_t trackers[] = {1, 0, 1, 0};
  const double gradients[] = {20, kInf, 10, kInf};
  for (int i = 0; i < 4; ++i) {
    const c10::cuda::CUDAStreamGuard guard(stream);
    input.fill_(inputs[i]);
    graph.replay();
    EXPECT_EQ(weight.grad().item<double>(), gradients[i]);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scales[i]);
    EXPECT_EQ(growth_tracker(scaler), trackers[i]);
  }
}

TEST(CapturedTraining, StepAndUpdateInAGraph) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto fresh = [] { return parameter_with_grad(torch::full({4}, 8.0, at::kCUDA)); };
  at::Tensor eager_parameter = fresh();
  at::Tensor captured_parameter = fresh();
  FusedAdam eager({eager_parameter}, torch::optim::AdamOptions(0.1));
  FusedAdam captured({captured_parameter}, torch::optim::AdamOptions(0.1));
  const accelerant::GradScalerOptions options{
      .device = at::kCUDA, .init_scale = 8, .growth_interval = 2};
  GradScaler eager_scaler = started_scaler(at::Device(at::kCUDA, 0), options);
  GradScaler captured_scaler = started_scaler(at::Device(at::kCUDA, 0), options);

  at::cuda::CUDAGraph graph;
  const auto stream = at::cuda::getStreamFromPool();
  const auto one_step = [&] {
    captured_scaler.step(captured);
    captured_scaler.update();
  };
  const auto eager_step = [&](double gradient) {
    eager_parameter.mutable_grad().fill_(gradient);
    eager_scaler.step(eager);
    eager_scaler.update();
  };
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    one_step();  // warm up: creates the moments
    eager_step(8.0);
    graph.capture_begin();
    one_step();
    graph.capture_end();
    for (const double gradient : {8.0, 16.0, kInf, 4.0, 4.0}) {
      captured_parameter.mutable_grad().fill_(gradient);
      graph.replay();
      eager_step(gradient);
      EXPECT_EQ(captured_scaler.get_scale(), eager_scaler.get_scale());
      EXPECT_TRUE(torch::equal(captured_parameter, eager_parameter));
    }
  }
  EXPECT_EQ(captured_scaler.status().skips, 1);
}
#else
TEST(CapturedTraining, ForwardAndBackwardInAGraph) { GTEST_SKIP() << "built without CUDA"; }
TEST(CapturedTraining, StepAndUpdateInAGraph) { GTEST_SKIP() << "built without CUDA"; }
#endif

TEST_P(Training, Float16TrainingRecoversFromTooLargeAScale) {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  model->to(device());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  GradScaler scaler({.device = GetParam(), .init_scale = 0x1p26});
  const at::Tensor x = torch::randn({64, 16}, options());
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  double first = 0;
  double last = 0;
  for (int i = 0; i < 60; ++i) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const accelerant::AutocastGuard autocast({GetParam(), at::kHalf});
      const at::Tensor output = model->forward(x);
      EXPECT_EQ(output.scalar_type(), at::kHalf);
      loss = torch::mse_loss(output.to(at::kFloat), y);
    }
    scaler.scale(loss).backward();
    EXPECT_EQ(model->parameters()[0].grad().scalar_type(), at::kFloat);
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (i == 0) first = last;
  }
  EXPECT_GE(scaler.status().skips, 1);  // the first scale is too large on purpose
  EXPECT_LT(scaler.status().skips, 30);
  EXPECT_LT(last, first / 10);
}

TEST_P(Training, OptimizersUnderAutocastMatchTheControl) {
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;
  const std::pair<const char*, Factory> kinds[] = {
      {"sgd", [](const auto& p) { return std::make_unique<torch::optim::SGD>(p, 0.1); }},
      {"adam", [](const auto& p) { return std::make_unique<torch::optim::Adam>(p, 0.01); }},
      {"adamw", [](const auto& p) { return std::make_unique<torch::optim::AdamW>(p, 0.01); }},
      {"fused", [](const auto& p) { return std::make_unique<FusedAdam>(p, 0.01); }},
  };
  for (const auto& [name, make_optimizer] : kinds) {
    auto control = make_model(device(), 1);
    auto trained = make_model(device(), 1);
    control.optimizer = make_optimizer(control.model->parameters());
    trained.optimizer = make_optimizer(trained.model->parameters());
    const auto loss_of = [&](ModelAndOptimizer& owner, const at::Tensor& x, const at::Tensor& y) {
      const accelerant::AutocastGuard autocast({GetParam(), at::kHalf});
      return torch::mse_loss(owner.model->forward(x).to(at::kFloat), y);
    };
    loop(control, [&](int i, const at::Tensor& x, const at::Tensor& y) {
      control.optimizer->zero_grad();
      loss_of(control, x, y).backward();
      if (i != kOverflowAt) control.optimizer->step();
    });
    GradScaler scaler({.device = GetParam(), .init_scale = 128, .growth_interval = 1});
    loop(trained, [&](int i, const at::Tensor& x, const at::Tensor& y) {
      trained.optimizer->zero_grad();
      scaler.scale(loss_of(trained, x, y)).backward();
      if (i == kOverflowAt) trained.model->parameters()[0].mutable_grad()[0][0] = kInf;
      EXPECT_EQ(scaler.step(*trained.optimizer).skipped(), i == kOverflowAt) << name;
      scaler.update();
    });
    EXPECT_EQ(scaler.get_scale(), 128 * 8 * 0.5) << name;
    // Gradients are rounded to float16 on the way, with different scales in the two runs.
    EXPECT_LT(largest_difference(control.model, trained.model), 2e-2) << name;
  }
}

}  // namespace
