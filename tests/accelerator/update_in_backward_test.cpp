// OffloadSettings::update_in_backward: updates begin before the step that they belong to.
#include <accelerant/core/failpoint.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "accelerator/offloaded_training.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/temp_folder.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Nonfinite;
using accelerant::Precision;

OffloadSetup early(Keeping keeping = Keeping::apart, int64_t steps = 1) {
  OffloadSetup setup{.options = on_cpu(Precision::no, steps), .keeping = keeping, .max_norm = 0};
  setup.options.offload.update_in_backward = keeping != Keeping::beside;
  return setup;
}

at::Tensor first_moment(OffloadedTraining& training, const at::Tensor& parameter) {
  auto& state = *training.original->state().at(parameter.unsafeGetTensorImpl());
  return static_cast<torch::optim::AdamWParamState&>(state).exp_avg();
}

TEST(UpdateInBackward, TrainsToTheSameBits) {
  for (const int64_t steps : {1, 3}) {
    for (const MakeOptimizer& make : all_fused_kinds()) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const auto train = [&](Keeping keeping) {
          OffloadSetup setup = early(keeping, steps);
          setup.make = make;
          setup.type = type;
          setup.options.master_weights = true;
          auto training = std::make_unique<OffloadedTraining>(setup);
          training->run();
          return training;
        };
        const auto expected = train(Keeping::beside);
        for (const Keeping keeping : {Keeping::on_host, Keeping::apart}) {
          expect_same_training(*train(keeping), *expected);
        }
      }
    }
  }
}

// The first step learns what there is; after that, everything is done when backward returns.
TEST(UpdateInBackward, IsDoneWhenBackwardReturns) {
  OffloadedTraining training(early());
  training.batch(0);
  const at::Tensor& weight = training.net->out->weight;
  const at::Tensor weight_before = weight.detach().clone();
  const at::Tensor moment_before = first_moment(training, weight).clone();
  training.accelerator.backward(training.loss_of(torch::ones({2, 18})));
  const at::Tensor weight_then = weight.detach().clone();
  EXPECT_FALSE(weight_then.equal(weight_before));
  EXPECT_FALSE(first_moment(training, weight).equal(moment_before));
  const at::Tensor moment = first_moment(training, weight).clone();
  training.optimizer.step();
  EXPECT_TRUE(weight.equal(weight_then));
  EXPECT_TRUE(first_moment(training, weight).equal(moment));
}

// Each is an Error, and every later use is one until a checkpoint is loaded.
TEST(UpdateInBackward, WhatIsBegunMustBeFinished) {
  using Mistake = std::function<void(OffloadedTraining&)>;
  const auto step = [](OffloadedTraining& training) { training.optimizer.step(); };
  const std::vector<std::pair<Mistake, std::string>> mistakes = {
      {[&](auto& training) {
         training.net->out->weight.mutable_grad().mul_(2);
         step(training);
       },
       "another gradient than backward made"},
      {[&](auto& training) {
         training.net->out->weight.mutable_grad().reset();
         step(training);
       },
       "no gradient of a parameter"},
      {[&](auto& training) {
         training.optimizer.param_groups()[0].options().set_lr(0.5);
         step(training);
       },
       "other learning rates"},
      {[&](auto& training) {
         {
           const torch::NoGradGuard no_grad;
           training.net->out->weight.mul_(0.5);
         }
         step(training);
       },
       "a parameter that was changed"},
      {[&](auto& training) {
         training.net->out->weight.set_data(torch::ones({3, 7}));
         step(training);
       },
       "a parameter that was changed"},
      {[&](auto& training) {
         training.original->state().clear();  // as torch::load() does
         step(training);
       },
       "param groups, options or states that were replaced"},
      {[](auto& training) { training.optimizer.zero_grad(); }, "gradients are dropped in between"},
      {[](auto& training) { training.accelerator.drop_gradients(); },
       "gradients are dropped in between"},
      {[](auto& training) {
         training.accelerator.backward(training.loss_of(torch::ones({2, 18})));
       },
       "another backward runs in between"},
      {[](auto& training) { training.state(); }, "the optimizer's state is read in between"},
      {[](auto& training) { training.accelerator.clip_grad_norm_(training.model, 1.0); },
       "needs all gradients before the first update"},
      {[](auto& training) { training.accelerator.clip_grad_value_(training.model, 1.0); },
       "needs all gradients before the first update"},
  };
  const TempFolder folder;
  OffloadedTraining expected(early(Keeping::beside));
  for (int64_t i = 0; i < 5; ++i) expected.batch(i);
  for (const auto& [mistake, text] : mistakes) {
    SCOPED_TRACE(text);
    OffloadedTraining training(early());
    for (int64_t i = 0; i < 3; ++i) training.batch(i);
    training.accelerator.save_state(folder.path("state"));
    training.accelerator.backward(training.loss_of(torch::ones({2, 18})));
    EXPECT_TRUE(contains(whole_error_of([&, &act = mistake] { act(training); }), text));
    training.accelerator.load_state(folder.path("state"));
    training.net->zero_grad();
    for (int64_t i = 3; i < 5; ++i) training.batch(i);
    expect_bits(training.state(), expected.state());
  }
}

class Failing {
 public:
  explicit Failing(const char* place) {
    ::setenv("ACCELERANT_FAILPOINT", (std::string(place) + ":throw").c_str(), 1);
    accelerant::reload_failpoints();
  }
  ~Failing() {
    ::unsetenv("ACCELERANT_FAILPOINT");
    accelerant::reload_failpoints();
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

// Updates themselves are done then.
TEST(UpdateInBackward, TheStepSendsWhatBackwardCouldNot) {
  OffloadedTraining expected(early());
  OffloadedTraining training(early());
  for (OffloadedTraining* one : {&expected, &training}) {
    for (int64_t i = 0; i < 2; ++i) one->batch(i);
  }
  expected.batch(2);
  torch::manual_seed(102);
  auto window = training.accelerator.accumulate(training.model);
  const at::Tensor loss = training.loss_of(torch::randn({4, 18}));
  {
    const Failing failing("optim.send_early");
    EXPECT_TRUE(
        contains(whole_error_of([&] { training.accelerator.backward(loss); }), "optim.send_early"));
  }
  training.optimizer.step();
  training.scheduler.step();
  training.optimizer.zero_grad();
  expect_bits(training.state(), expected.state());
}

TEST(OffloadedStep, WhatFailedInTheMiddleIsNotSaved) {
  const TempFolder folder;
  OffloadSetup setup{.options = on_cpu(), .keeping = Keeping::apart, .max_norm = 0};
  OffloadedTraining expected(setup);
  OffloadedTraining training(setup);
  for (int64_t i = 0; i < 2; ++i) expected.batch(i);
  training.batch(0);
  training.accelerator.save_state(folder.path("good"));
  {
    const Failing failing("optim.send");
    EXPECT_TRUE(contains(whole_error_of([&] { training.batch(1); }), "optim.send"));
  }
  EXPECT_TRUE(contains(whole_error_of([&] { training.accelerator.save_state(folder.path("bad")); }),
                       "has failed in the middle"));
  training.accelerator.load_state(folder.path("good"));
  training.net->zero_grad();
  training.batch(1);
  expect_bits(training.state(), expected.state());
}

// The generator's backward reaches the discriminator, whose step does not follow.
TEST(UpdateInBackward, OtherModelsOfABackwardWait) {
  const auto train = [](Keeping keeping) {
    const KeepingScope scope(keeping);
    auto options = on_cpu();
    options.warnings.slow_precision = false;
    options.offload = {.optimizer = keeping != Keeping::beside,
                       .update_in_backward = keeping != Keeping::beside};
    Accelerator accelerator(options);
    torch::manual_seed(3);
    torch::nn::Linear generator(3, 4);
    torch::nn::Linear discriminator(4, 1);
    const auto of_generator = adamw()(generator->parameters());
    const auto of_discriminator = adamw()(discriminator->parameters());
    auto [g, d] = accelerator.prepare(generator, discriminator);
    auto [g_optimizer, d_optimizer] = accelerator.prepare(*of_generator, *of_discriminator);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor noise = torch::randn({5, 3});
      {
        auto window = accelerator.accumulate(d);
        accelerator.backward(d(g(noise).detach()).square().mean());
        d_optimizer.step();
        d_optimizer.zero_grad();
      }
      auto window = accelerator.accumulate(g);
      accelerator.backward(d(g(noise)).mean());
      g_optimizer.step();
      g_optimizer.zero_grad();
      d_optimizer.zero_grad();
    }
    std::vector<at::Tensor> parameters = generator->parameters();
    for (const at::Tensor& parameter : discriminator->parameters()) parameters.push_back(parameter);
    return parameters;
  };
  expect_bits(train(Keeping::apart), train(Keeping::beside));
}

// One optimizer refuses the backward after another has begun to let its gradients leave.
TEST(UpdateInBackward, NothingLeavesAfterARefusedBackward) {
  const KeepingScope scope(Keeping::apart);
  auto options = on_cpu();
  options.offload = {.optimizer = true, .update_in_backward = true};
  Accelerator accelerator(options);
  torch::nn::Linear first(2, 2);
  torch::nn::Linear second(2, 2);
  const auto of_first = adamw()(first->parameters());
  const auto of_second = adamw()(second->parameters());
  auto [first_model, second_model] = accelerator.prepare(first, second);
  auto [first_optimizer, second_optimizer] = accelerator.prepare(*of_first, *of_second);
  const at::Tensor x = torch::ones({3, 2});
  accelerator.backward(second_model(x).sum());  // the first step learns what there is
  second_optimizer.step();
  second_optimizer.zero_grad();
  accelerator.backward(second_model(x).sum());
  EXPECT_TRUE(contains(whole_error_of([&] { accelerator.backward(first_model(x).sum()); }),
                       "another backward runs in between"));
  const at::Tensor gradient = torch::zeros({2, 2});
  first->weight.mutable_grad() = gradient;
  first_model(x).sum().backward();
  EXPECT_TRUE(first->weight.grad().is_same(gradient));
}

// A short window of a stream is corrected by a factor, so its updates wait for the step.
TEST(UpdateInBackward, WaitsWhereGradientsNeedAFactor) {
  const auto train = [](Keeping keeping, bool by_items) {
    OffloadSetup setup = early(keeping, 3);
    OffloadedTraining training(setup);
    auto loader = training.accelerator.prepare(
        accelerant::data::loader(CountingStream{.length = 8}, {.batch_size = 1}));
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto&& batch : loader) {
        auto window = training.accelerator.accumulate(training.model);
        const at::Tensor loss =
            training.loss_of(torch::full({1, 18}, batch.sum().template item<float>()));
        if (by_items) {
          training.accelerator.backward(loss, 2 + loader.position() % 3);
        } else {
          training.accelerator.backward(loss);
        }
        training.optimizer.step();
        training.optimizer.zero_grad();
      }
    }
    return training.state();
  };
  for (const bool by_items : {false, true}) {
    expect_bits(train(Keeping::apart, by_items), train(Keeping::beside, by_items));
  }
}

TEST(UpdateInBackward, OptionsThatContradictAreRefused) {
  const auto error_with = [](auto&& change) {
    auto options = on_cpu();
    options.offload = {.optimizer = true, .update_in_backward = true};
    change(options);
    return whole_error_of([&] { Accelerator{options}; });
  };
  EXPECT_TRUE(contains(error_with([](auto& options) { options.offload.optimizer = false; }),
                       "offload.optimizer = true"));
  EXPECT_TRUE(contains(error_with([](auto& options) { options.mixed_precision = Precision::fp16; }),
                       "fp16"));
  EXPECT_TRUE(contains(error_with([](auto& options) { options.nonfinite = Nonfinite::skip; }),
                       "nonfinite = skip or stop"));
  EXPECT_TRUE(contains(error_with([](auto& options) { options.fused = false; }), "fused = true"));
  EXPECT_TRUE(contains(error_with([](auto& options) { options.offload = {.budget = 1}; }),
                       "offload.parameters = true"));
}

class UpdateInBackwardOnDevice : public OnDevice {};

TEST_P(UpdateInBackwardOnDevice, TrainsAsInTheStep) {
  const auto train = [&](bool in_backward) {
    OffloadSetup setup = early(Keeping::on_host);
    setup.options.cpu = std::nullopt;
    setup.options.device = device();
    setup.options.offload.update_in_backward = in_backward;
    OffloadedTraining training(setup);
    training.run();
    return training.state();
  };
  at::globalContext().setDeterministicCuDNN(true);
  expect_bits(train(true), train(false));
}

ON_EVERY_DEVICE(UpdateInBackwardOnDevice);

}  // namespace
}  // namespace accelerator_test
