// Prepared optimizers step in fused kernels. Only the speed changes.
#include <gtest/gtest.h>

#include <memory>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::Precision;

AcceleratorOptions options_on(at::Device device, Precision precision = Precision::no,
                              int64_t steps = 1) {
  return {.device = device,
          .mixed_precision = precision,
          .gradient_accumulation = {.steps = steps},
          .scaler = {.init_scale = 1024, .growth_interval = 3}};
}

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class O, class Options>
MakeOptimizer kind(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

std::vector<MakeOptimizer> all_kinds() {
  using namespace torch::optim;
  return {kind<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
          kind<Adam>(AdamOptions(0.02).amsgrad(true)),
          kind<AdamW>(AdamWOptions(0.02).weight_decay(0.1)),
          kind<Adagrad>(AdagradOptions(0.05).lr_decay(0.01)),
          kind<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))};
}

struct Trained {
  std::vector<at::Tensor> parameters = {};
  std::vector<double> norms = {};
  std::vector<double> rates = {};
  std::vector<bool> skipped = {};
};

// Eleven batches in windows, with norm clipping, a schedule and, with fp16, an overflow.
Trained train(AcceleratorOptions options, const MakeOptimizer& make, bool fused) {
  options.fused = fused;
  Accelerator accelerator(options);
  auto net = make_net();
  const auto original = make(net->parameters());
  auto schedule =
      accelerant::optim::cosine_with_warmup(*original, {.warmup_steps = 2, .total_steps = 9});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, *original, schedule);
  torch::manual_seed(11);
  Trained run;
  for (int64_t batch = 0; batch < 11; ++batch) {
    auto window = accelerator.accumulate(model);
    at::Tensor loss = model(torch::randn({4, 5}).to(accelerator.device())).square().sum();
    if (accelerator.scaler().is_enabled() && batch == 5) loss = loss * 1e30;
    accelerator.backward(loss);
    if (const auto norm = accelerator.clip_grad_norm_(model, 0.5)) {
      run.norms.push_back(norm->item<double>());
    }
    optimizer.step();
    scheduler.step();
    run.rates.push_back(scheduler.get_last_lr()[0]);
    run.skipped.push_back(optimizer.step_was_skipped());
    optimizer.zero_grad();
  }
  for (const at::Tensor& parameter : net->parameters()) {
    run.parameters.push_back(parameter.detach().cpu());
  }
  return run;
}

class FusedSteps : public OnDevice {};

TEST_P(FusedSteps, TrainAsTheOptimizersOwn) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int64_t steps : {1, 3}) {
      for (const MakeOptimizer& make : all_kinds()) {
        const auto options = options_on(device(), precision, steps);
        const Trained fused = train(options, make, true);
        const Trained stock = train(options, make, false);
        // Sums in a different order round differently, and 16-bit forwards magnify that.
        const double tolerance = precision == Precision::no ? 1e-5 : 2e-2;
        EXPECT_TRUE(all_close(fused.parameters, stock.parameters, tolerance));
        ASSERT_EQ(fused.norms.size(), stock.norms.size());
        for (std::size_t i = 0; i < fused.norms.size(); ++i) {
          if (std::isfinite(stock.norms[i])) {
            EXPECT_NEAR(fused.norms[i] / stock.norms[i], 1.0, tolerance);
          } else {
            EXPECT_FALSE(std::isfinite(fused.norms[i]));
          }
        }
        EXPECT_EQ(fused.rates, stock.rates);
        EXPECT_EQ(fused.skipped, stock.skipped);
      }
    }
  }
}

TEST_P(FusedSteps, ClippingIsLeftToTheStep) {
  Accelerator accelerator(options_on(device(), Precision::fp16));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor x = full({1}, 3);
  accelerator.backward(model(x).sum());
  const auto norm = accelerator.clip_grad_norm_(model, 1.5);
  EXPECT_FLOAT_EQ(norm->item<float>(), 3);
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 3 * 1024);
  accelerator.clip_grad_norm_(model, 2.0);  // the smallest limit counts
  optimizer.step();
  EXPECT_NEAR(net->w.item<float>(), 1 - 1.5, 1e-5);
}

TEST_P(FusedSteps, WhoeverAsksForTheGradientsGetsThem) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    Accelerator accelerator(options_on(device(), precision));
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor x = full({1}, 3);
    accelerator.backward(model(x).sum());
    accelerator.clip_grad_norm_(model, 1.5);
    accelerator.unscale_gradients();
    EXPECT_NEAR(net->w.grad().item<float>(), 1.5, 1e-5);
    accelerator.clip_grad_value_(model, 0.25);
    optimizer.step();
    EXPECT_NEAR(net->w.item<float>(), 1 - 0.25, 1e-5);
  }
}

// The step can compute the norm itself only if it covers all gradients of the optimizer.
TEST_P(FusedSteps, ClippingAPartChangesTheGradients) {
  Accelerator accelerator(options_on(device()));
  Scale first, second;
  torch::optim::SGD sgd({first->w, second->w}, 1.0);
  auto [model, other, optimizer] = accelerator.prepare(first, second, sgd);
  const at::Tensor x = full({1}, 3);
  accelerator.backward(model(x).sum() + other(x).sum());
  accelerator.clip_grad_norm_(model, 1.0);
  EXPECT_NEAR(first->w.grad().item<float>(), 1, 1e-5);
  EXPECT_FLOAT_EQ(second->w.grad().item<float>(), 3);
  optimizer.step();
  EXPECT_NEAR(first->w.item<float>(), 0, 1e-5);
  EXPECT_FLOAT_EQ(second->w.item<float>(), -2);
}

// Gradients that no optimizer uses are part of the norm.
TEST_P(FusedSteps, ParametersOfNoOptimizerCount) {
  Accelerator accelerator(options_on(device()));
  auto net = make_net();
  torch::optim::SGD sgd(net[0]->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(torch::ones({2, 5}).to(device())).square().sum());
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  const double expected = accelerant::get_total_norm(gradients).item<double>();
  const auto norm = accelerator.clip_grad_norm_(model, 0.1);
  EXPECT_NEAR(norm->item<double>() / expected, 1.0, 1e-5);
  EXPECT_NEAR(accelerant::get_total_norm(gradients).item<double>(), 0.1, 1e-5);
}

// The optimizer's own step directly follows the closure.
TEST_P(FusedSteps, ClippingInAClosureChangesTheGradients) {
  Accelerator accelerator(options_on(device()));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  optimizer.step([&, &m = model, &o = optimizer] {
    o.zero_grad();
    const at::Tensor loss = m(full({1}, 3)).sum();
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(m, 0.5);
    return loss;
  });
  EXPECT_NEAR(net->w.item<float>(), 1 - 0.5, 1e-5);
  optimizer.zero_grad();
  accelerator.backward(model(full({1}, 3)).sum());
  optimizer.step();
  EXPECT_NEAR(net->w.item<float>(), 1 - 0.5 - 3, 1e-5);
}

TEST_P(FusedSteps, ALimitGoesWithTheGradientsItWasFor) {
  Accelerator accelerator(options_on(device()));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto norm_of = [&, &m = model](double x, double limit) {
    net->zero_grad();
    accelerator.backward(m(full({1}, x)).sum());
    return accelerator.clip_grad_norm_(m, limit)->item<double>();
  };
  EXPECT_NEAR(norm_of(3, 0.1), 3, 1e-5);
  EXPECT_NEAR(norm_of(7, 5.0), 7, 1e-5);  // the memory may be the same
  optimizer.step();
  EXPECT_NEAR(net->w.item<float>(), 1 - 5, 1e-4);
}

TEST_P(FusedSteps, NoCheckpointBetweenClippingAndStep) {
  const TempFolder folder;
  Accelerator accelerator(options_on(device()));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(full({1}, 3)).sum());
  accelerator.clip_grad_norm_(model, 0.5);
  EXPECT_TRUE(contains(whole_error_of([&] { accelerator.save_state(folder.path("a")); }),
                       "between backward() and step()"));
  optimizer.step();
  accelerator.save_state(folder.path("a"));
}

TEST_P(FusedSteps, StateIsTheOriginals) {
  Accelerator accelerator(options_on(device()));
  auto net = make_net();
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto steps_of = [&](const at::Tensor& parameter) {
    auto& state = *adamw.state().at(parameter.unsafeGetTensorImpl());
    return static_cast<torch::optim::AdamWParamState&>(state).step();
  };
  const auto step = [&] {
    accelerator.backward(model(torch::ones({2, 5}).to(device())).sum());
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  optimizer.sync();
  for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(steps_of(parameter), 3);
  step();
  accelerator.end_training();
  for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(steps_of(parameter), 4);
}

TEST_P(FusedSteps, RatesAndGroupsMayChange) {
  const auto run = [&](bool fused) {
    auto options = options_on(device());
    options.fused = fused;
    Accelerator accelerator(options);
    auto net = make_net();
    torch::optim::AdamW adamw(net[0]->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int i = 0; i < 6; ++i) {
      if (i == 2) optimizer.param_groups()[0].options().set_lr(0.01);
      if (i == 4) {
        adamw.add_param_group(torch::optim::OptimizerParamGroup(net[2]->parameters()));
      }
      accelerator.backward(model(torch::ones({2, 5}).to(device())).square().sum());
      optimizer.step();
      optimizer.zero_grad();
    }
    return copies(net->parameters());
  };
  EXPECT_TRUE(all_close(run(true), run(false), 1e-5));
}

// Handles may outlive the objects they were made from.
TEST_P(FusedSteps, NoDestructorTouchesTheOriginal) {
  Accelerator accelerator(options_on(device()));
  Scale net;
  accelerant::Optimizer optimizer;
  {
    auto sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 1.0);
    const auto [model, prepared] = accelerator.prepare(net, *sgd);
    optimizer = prepared;
    accelerator.backward(model(full({1}, 3)).sum());
    optimizer.step();
  }
  optimizer = {};
}

// The optimizer's own step needs clipped gradients; a fused step clips by itself.
TEST_P(FusedSteps, CanBeForbiddenAndDemanded) {
  struct Derived : torch::optim::SGD {
    using SGD::SGD;
  };
  Scale net;
  const auto clipped_gradient = [&](torch::optim::Optimizer& original, std::optional<bool> fused) {
    Accelerator accelerator(options_on(device()));
    const auto model = accelerator.prepare(net);
    const auto optimizer = accelerator.prepare_optimizer(original, {.fused = fused});
    net->zero_grad();
    accelerator.backward(model(full({1}, 3)).sum());
    accelerator.clip_grad_norm_(model, 1.0);
    const double gradient = net->w.grad().item<double>();
    optimizer.step();
    return gradient;
  };
  torch::optim::SGD sgd(net->parameters(), 0.0);
  EXPECT_NEAR(clipped_gradient(sgd, std::nullopt), 3, 1e-5);
  EXPECT_NEAR(clipped_gradient(sgd, true), 3, 1e-5);
  EXPECT_NEAR(clipped_gradient(sgd, false), 1, 1e-5);
  Derived derived(net->parameters(), 0.0);
  EXPECT_NEAR(clipped_gradient(derived, std::nullopt), 1, 1e-5);
  const std::string text = whole_error_of([&] { clipped_gradient(derived, true); });
  EXPECT_TRUE(contains(text, "cannot be stepped by fused kernels"));
  EXPECT_TRUE(contains(text, "Derived"));
}

ON_EVERY_DEVICE(FusedSteps);

}  // namespace
