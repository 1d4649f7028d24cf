// AcceleratorOptions::offload.optimizer: only where things are and when they move changes, not what
// is computed.
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>

#include "accelerator/offload/host_gradients.h"
#include "accelerator/offloaded_training.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/on_device.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::Nonfinite;
using accelerant::Precision;

constexpr Keeping kKeepings[] = {Keeping::on_host, Keeping::apart};

testing::Message text_of(Keeping keeping) {
  return testing::Message() << (keeping == Keeping::apart ? "apart" : "on the host");
}

// Trains the same with and without offload.
void expect_same_bits(OffloadSetup setup) {
  setup.keeping = Keeping::beside;
  OffloadedTraining expected(setup);
  expected.run();
  for (const Keeping keeping : kKeepings) {
    SCOPED_TRACE(text_of(keeping));
    setup.keeping = keeping;
    OffloadedTraining training(setup);
    training.run();
    expect_same_training(training, expected);
  }
}

TEST(OffloadOptimizer, TrainsToTheSameBits) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int64_t steps : {1, 3}) {
      for (const MakeOptimizer& make : all_fused_kinds()) {
        OffloadSetup setup{.options = on_cpu(precision, steps), .make = make};
        setup.options.scaler = {.init_scale = 1024, .growth_interval = 3};
        setup.overflows = precision == Precision::fp16;
        expect_same_bits(setup);
      }
    }
  }
}

TEST(OffloadOptimizer, NothingIsClipped) { expect_same_bits({.max_norm = 0}); }

TEST(OffloadOptimizer, ParametersOf16BitsAndTheirMasters) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const bool masters : {false, true}) {
      OffloadSetup setup{.type = type};
      setup.options.master_weights = masters;
      expect_same_bits(setup);
    }
  }
}

TEST(OffloadOptimizer, StepsThatAreNotFinite) {
  for (const Nonfinite nonfinite : {Nonfinite::skip, Nonfinite::stop}) {
    OffloadSetup setup{.overflows = true};
    setup.options.nonfinite = nonfinite;
    if (nonfinite == Nonfinite::skip) {
      expect_same_bits(setup);
      continue;
    }
    for (const Keeping keeping : kKeepings) {
      setup.keeping = keeping;
      OffloadedTraining training(setup);
      EXPECT_TRUE(contains(whole_error_of([&] { training.run(); }), "out.weight [3, 7]: "));
    }
  }
}

// The gradients are where the host can read and change them, and count as they are then.
TEST(OffloadOptimizer, GradientsMayBeReadAndChanged) {
  const auto run = [](Keeping keeping, Precision precision) {
    OffloadSetup setup{.options = scaled_options(), .keeping = keeping};
    setup.options.mixed_precision = precision;
    OffloadedTraining training(setup);
    std::vector<at::Tensor> seen;
    for (int i = 0; i < 4; ++i) {
      training.accelerator.backward(training.loss_of(torch::ones({2, 18})));
      training.accelerator.unscale_gradients();
      training.net->out->weight.mutable_grad().mul_(0.5);
      training.accelerator.clip_grad_value_(training.model, 0.25);
      for (const at::Tensor& parameter : training.trainable()) {
        if (parameter.grad().defined()) seen.push_back(parameter.grad().clone());
      }
      training.optimizer.step();
      training.optimizer.zero_grad();
    }
    const auto state = training.state();
    seen.insert(seen.end(), state.begin(), state.end());
    return seen;
  };
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    const auto expected = run(Keeping::beside, precision);
    for (const Keeping keeping : kKeepings) expect_bits(run(keeping, precision), expected);
  }
}

// Several backwards add up, whether or not the gradients have left, and those that a program keeps
// looking at are not written again.
TEST(OffloadOptimizer, SeveralBackwardsOfAStep) {
  const auto run = [](Keeping keeping, bool set_to_none, bool clears) {
    OffloadedTraining training({.keeping = keeping});
    std::vector<at::Tensor> kept;
    for (int i = 0; i < 6; ++i) {
      torch::manual_seed(static_cast<uint64_t>(i));
      training.accelerator.backward(training.loss_of(torch::randn({2, 18})));
      if (i > 2) training.accelerator.backward(training.loss_of(torch::randn({2, 18})));
      kept.push_back(training.net->out->weight.grad());
      training.optimizer.step();
      if (clears) training.optimizer.zero_grad(set_to_none);
    }
    auto state = training.state();
    if (set_to_none && clears) state.insert(state.end(), kept.begin(), kept.end());
    return state;
  };
  for (const bool set_to_none : {true, false}) {
    for (const bool clears : {true, false}) {
      const auto expected = run(Keeping::beside, set_to_none, clears);
      for (const Keeping keeping : kKeepings) {
        expect_bits(run(keeping, set_to_none, clears), expected);
      }
    }
  }
}

// After a step with several backwards they wait on the device, until a step has had one only.
TEST(OffloadOptimizer, GradientsLeaveAgainAfterSeveralBackwardsOfAStep) {
  OffloadedTraining training({.keeping = Keeping::apart});
  at::Tensor& weight = training.net->out->weight;
  const auto backward = [&] {
    training.accelerator.backward(training.loss_of(torch::ones({2, 18})));
  };
  const auto leaves_in_a_step = [&] {
    const at::Tensor gradient = torch::zeros_like(weight);
    weight.mutable_grad() = gradient;
    backward();
    const bool has_left = !weight.grad().is_same(gradient);
    training.optimizer.step();
    training.optimizer.zero_grad();
    return has_left;
  };
  EXPECT_TRUE(leaves_in_a_step());
  for (int i = 0; i < 2; ++i) {
    backward();
    backward();
    training.optimizer.step();
    training.optimizer.zero_grad();
  }
  EXPECT_FALSE(leaves_in_a_step());
  EXPECT_TRUE(leaves_in_a_step());
}

// A parameter may outlive the one that waits for its gradient, below the hook of another.
TEST(OffloadOptimizer, HooksEndInAnyOrder) {
  using accelerant::detail::HostGradients;
  const KeepingScope scope(Keeping::apart);
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  torch::optim::SGD sgd({weight}, 0.1);
  alignas(HostGradients) std::byte memory[sizeof(HostGradients)];
  auto* const first = new (memory) HostGradients(sgd);
  first->begin_leaving();
  std::optional<HostGradients> second(sgd);
  second->begin_leaving();
  first->~HostGradients();
  std::ranges::fill(memory, std::byte{0xff});  // whatever still uses it fails
  weight.sum().backward();
  EXPECT_TRUE(weight.grad().equal(torch::ones({3})));
  second.reset();
  weight.sum().backward();
  EXPECT_TRUE(weight.grad().equal(torch::full({3}, 2.0)));
}

TEST(OffloadOptimizer, BackwardsOfTheProgramsOwn) {
  const auto run = [](Keeping keeping) {
    OffloadedTraining training({.keeping = keeping});
    for (int i = 0; i < 3; ++i) {
      training.loss_of(torch::ones({2, 18})).backward();
      training.optimizer.step();
      training.optimizer.zero_grad();
    }
    return training.state();
  };
  const auto expected = run(Keeping::beside);
  for (const Keeping keeping : kKeepings) expect_bits(run(keeping), expected);
}

// The host's copies follow what the program does to the parameters, the groups and the rates.
TEST(OffloadOptimizer, ProgramsMayChangeEverything) {
  const auto run = [](Keeping keeping, at::ScalarType type) {
    OffloadSetup setup{.keeping = keeping, .type = type};
    setup.options.master_weights = true;
    setup.make = [](const std::vector<at::Tensor>& parameters) {
      return std::make_unique<torch::optim::AdamW>(
          std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2), 0.05);
    };
    OffloadedTraining training(setup);
    for (int64_t i = 0; i < 9; ++i) {
      const torch::NoGradGuard no_grad;
      if (i == 2) training.net->conv->weight.mul_(0.5);
      if (i == 3) training.net->conv->bias.set_data(torch::ones({4}, type));
      if (i == 4) {
        training.original->add_param_group(
            torch::optim::OptimizerParamGroup(training.net->out->parameters()));
      }
      if (i == 6) training.optimizer.param_groups()[1].options().set_lr(0.001);
      const torch::AutoGradMode with_gradients(true);
      training.batch(i);
    }
    return training.state();
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto expected = run(Keeping::beside, type);
    for (const Keeping keeping : kKeepings) expect_bits(run(keeping, type), expected);
  }
}

TEST(OffloadOptimizer, ResumesFromAndForBothWays) {
  constexpr Keeping all[] = {Keeping::beside, Keeping::on_host, Keeping::apart};
  for (const bool masters : {false, true}) {
    for (const Precision precision : {Precision::no, Precision::fp16}) {
      if (masters && precision == Precision::fp16) continue;  // float16 weights are refused
      OffloadSetup setup{.options = on_cpu(precision, 2)};
      setup.options.master_weights = masters;
      setup.type = masters ? at::kBFloat16 : at::kFloat;
      const auto training_with = [&](Keeping keeping) {
        setup.keeping = keeping;
        return std::make_unique<OffloadedTraining>(setup);
      };
      std::vector<at::Tensor> expected;
      {
        const auto whole = training_with(Keeping::beside);
        whole->run();
        expected = whole->state();
      }
      for (const Keeping before : all) {
        for (const Keeping after : all) {
          for (const int64_t at : {0, 6, 7}) {  // 7: in the middle of a window
            SCOPED_TRACE(testing::Message() << static_cast<int>(before) << ", then "
                                            << static_cast<int>(after) << ", at batch " << at);
            const TempFolder folder;
            {
              const auto first = training_with(before);
              for (int64_t i = 0; i < at; ++i) first->batch(i);
              first->accelerator.save_state(folder.path("state"));
            }
            const auto second = training_with(after);
            for (int64_t i = 0; i < 2; ++i) second->batch(i + 20);  // something to be replaced
            second->accelerator.load_state(folder.path("state"));
            second->run(at);
            expect_bits(second->state(), expected);
          }
        }
      }
    }
  }
}

TEST(OffloadOptimizer, LeavesNoHooksBehind) {
  struct Count final : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& calls) : calls_(calls) {}
    void operator()(const at::Tensor& /*parameter*/) override { ++calls_; }
    int& calls_;
  };
  int calls = 0;
  Scale net;
  auto& hook = torch::autograd::impl::post_acc_grad_hooks(net->w);
  hook = std::make_unique<Count>(calls);
  const auto* const own = hook.get();
  {
    const KeepingScope scope(Keeping::apart);
    auto options = on_cpu();
    options.offload.optimizer = true;
    Accelerator accelerator(options);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(scalar(3)).sum());
    EXPECT_EQ(calls, 1);
    EXPECT_NE(hook.get(), own);
    optimizer.step();
  }
  EXPECT_EQ(hook.get(), own);
  EXPECT_EQ(net->w.item<float>(), -2);
}

TEST(OffloadOptimizer, WhatCannotBeOffloadedIsRefused) {
  auto options = on_cpu();
  options.offload.optimizer = true;
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  {
    Accelerator accelerator(options);
    torch::optim::LBFGS lbfgs(net->parameters());
    EXPECT_TRUE(contains(whole_error_of([&] { accelerator.prepare(net, lbfgs); }),
                         "The optimizer's state cannot be offloaded"));
    EXPECT_TRUE(
        contains(whole_error_of([&] { accelerator.prepare_optimizer(sgd, {.fused = false}); }),
                 "must step in fused kernels"));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_TRUE(
        contains(whole_error_of([&, &o = optimizer] { o.step([] { return at::Tensor(); }); }),
                 "A closure cannot be used"));
  }
  {
    Accelerator accelerator(options);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    torch::optim::SGD of_table(table->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(table, of_table);
    accelerator.backward(model(torch::tensor({1, 3})).sum());
    const std::string error = whole_error_of([&, &o = optimizer] { o.step(); });
    EXPECT_TRUE(contains(error, "Sparse"));
    EXPECT_TRUE(contains(error, "offload.optimizer"));
  }
}

TEST(OffloadOptimizer, CapturedStepsRunEagerlyAndSaySo) {
  GatheredLog log;
  OffloadedTraining training({.keeping = Keeping::apart});
  auto step = training.accelerator.capture([&](const at::Tensor& x) {
    training.accelerator.backward(training.loss_of(x));
    training.optimizer.step();
    training.optimizer.zero_grad();
  });
  for (int i = 0; i < 4; ++i) step(torch::ones({2, 18}));
  EXPECT_FALSE(step.is_captured());
  EXPECT_EQ(std::ranges::count_if(log.messages(),
                                  [](const std::string& message) {
                                    return contains(message, "AcceleratorOptions::offload");
                                  }),
            1);
}

RANK_TEST(OffloadOptimizer, SeveralProcesses, 2) {
  for (const bool views : {false, true}) {
    for (const Precision precision : {Precision::no, Precision::fp16}) {
      const auto train = [&](Keeping keeping) {
        OffloadSetup setup{.options = on_cpu(precision, 2), .keeping = keeping};
        setup.options.data_parallel.gradient_as_bucket_view = views;
        setup.options.data_parallel.find_unused_parameters = true;
        auto training = std::make_unique<OffloadedTraining>(setup);
        for (int64_t i = 0; i < 8; ++i) training->batch(2 * i + rank());
        expect_same_on_all_ranks(training->accelerator.world(), training->state());
        return training->state();
      };
      const auto expected = train(Keeping::beside);
      for (const Keeping keeping : kKeepings) expect_bits(train(keeping), expected);
    }
  }
}

class OffloadOnDevice : public OnDevice {
 protected:
  OffloadSetup setup_with(Keeping keeping, Precision precision = Precision::no) const {
    OffloadSetup setup{.keeping = keeping};
    setup.options = {.device = device(),
                     .mixed_precision = precision,
                     .gradient_accumulation = {.steps = 2},
                     .scaler = {.init_scale = 1024, .growth_interval = 3}};
    return setup;
  }
};

// Bit for bit on the CPU; on a GPU the kernels for CPUs round differently.
TEST_P(OffloadOnDevice, TrainsTheSame) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const MakeOptimizer& make : all_fused_kinds()) {
      const auto train = [&](Keeping keeping) {
        OffloadSetup setup = setup_with(keeping, precision);
        setup.make = make;
        OffloadedTraining training(setup);
        training.run();
        return training.state();
      };
      const double tolerance = precision == Precision::no ? 1e-4 : 2e-2;
      EXPECT_TRUE(all_close(train(Keeping::on_host), train(Keeping::beside), tolerance));
    }
  }
}

// Gradients that have left must come back to be added to.
TEST_P(OffloadOnDevice, SeveralBackwardsAddUp) {
  const auto train = [&](Keeping keeping, bool clears, bool set_to_none) {
    OffloadSetup setup = setup_with(keeping);
    setup.options.gradient_accumulation = {.steps = 1};
    setup.make = all_fused_kinds()[1];
    OffloadedTraining training(setup);
    for (int i = 0; i < 5; ++i) {
      training.accelerator.backward(training.loss_of(full({2, 18}, 0.1 * i)));
      if (i % 2 == 1) training.accelerator.backward(training.loss_of(full({2, 18}, 0.3)));
      if (i == 3) training.accelerator.clip_grad_value_(training.model, 0.2);
      training.optimizer.step();
      if (clears) training.optimizer.zero_grad(set_to_none);
    }
    return training.state();
  };
  for (const bool clears : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      EXPECT_TRUE(all_close(train(Keeping::on_host, clears, set_to_none),
                            train(Keeping::beside, clears, set_to_none), 1e-4));
    }
  }
}

TEST_P(OffloadOnDevice, EverythingIsWhereItBelongs) {
  OffloadSetup setup = setup_with(Keeping::on_host);
  setup.type = at::kBFloat16;
  setup.options.master_weights = true;
  setup.options.gradient_accumulation = {.steps = 1};
  OffloadedTraining training(setup);
  for (int i = 0; i < 3; ++i) {
    training.accelerator.backward(training.loss_of(full({2, 18}, 1)));
    EXPECT_TRUE(training.net->out->weight.grad().is_cpu());
    training.optimizer.step();
    training.optimizer.zero_grad();
    EXPECT_EQ(training.net->out->weight.device().type(), GetParam());
  }
  const accelerant::optim::ParameterNames names(training.model.named_parameters());
  const auto saved = accelerant::optim::optimizer_state_dict(*training.original, names);
  EXPECT_GT(saved.tensors.size(), 0U);
  for (const auto& item : saved.tensors) EXPECT_TRUE(item.value().is_cpu()) << item.key();

  const TempFolder folder;
  training.accelerator.save_state(folder.path("state"));
  training.accelerator.load_state(folder.path("state"));
  const auto loaded = accelerant::optim::optimizer_state_dict(*training.original, names);
  for (const auto& item : loaded.tensors) EXPECT_TRUE(item.value().is_cpu()) << item.key();
}

TEST_P(OffloadOnDevice, ResumesBitForBit) {
  const auto deterministic = [] {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  };
  deterministic();
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    const OffloadSetup setup = setup_with(Keeping::on_host, precision);
    OffloadedTraining whole(setup);
    whole.run();
    const TempFolder folder;
    {
      OffloadedTraining first(setup);
      for (int64_t i = 0; i < 7; ++i) first.batch(i);  // in the middle of a window
      first.accelerator.save_state(folder.path("state"));
    }
    OffloadedTraining second(setup);
    second.accelerator.load_state(folder.path("state"));
    second.run(7);
    expect_bits(second.state(), whole.state());
  }
}

// Memory of the device that a copy still reads or writes must not be used by later work: many large
// gradients, a device that is behind, and memory that is freed at once.
TEST_P(OffloadOnDevice, CopiesAreInOrder) {
  const auto train = [&](bool offload) {
    torch::manual_seed(5);
    torch::nn::Sequential net;
    const int64_t width = on_cuda() ? 2048 : 32;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(width, width));
    accelerant::AcceleratorOptions options{.device = device()};
    options.offload.optimizer = offload;
    Accelerator accelerator(options);
    torch::optim::SGD sgd(net->parameters(), 0.125);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 5; ++i) {
      torch::manual_seed(static_cast<uint64_t>(i));
      accelerator.backward(model(torch::randn({64, width}).to(device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) {
      parameters.push_back(parameter.detach().cpu());
    }
    return parameters;
  };
  EXPECT_TRUE(all_close(train(true), train(false), 1e-6));
}

// Gradients leave while backward computes others, and the states never come.
TEST_P(OffloadOnDevice, TheDeviceHoldsLittleMoreThanTheWeights) {
  if (!on_cuda()) GTEST_SKIP() << "memory of the CPU is not counted";
  auto* const allocator = at::getDeviceAllocator(at::kCUDA);
  const auto peak_in_weights = [&](bool offload) {
    torch::nn::Sequential net;
    for (int i = 0; i < 12; ++i) net->push_back(torch::nn::Linear(2048, 2048));
    int64_t weights = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      weights += static_cast<int64_t>(parameter.nbytes());
    }
    allocator->emptyCache();
    const int64_t before = allocator->getDeviceStats(0).allocated_bytes.at(0).current;
    accelerant::AcceleratorOptions options{.device = device()};
    options.offload.optimizer = offload;
    Accelerator accelerator(options);
    torch::optim::AdamW adamw(net->parameters(), 0.001);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    allocator->resetPeakStats(0);
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(full({4, 2048}, 1)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    const int64_t peak = allocator->getDeviceStats(0).allocated_bytes.at(0).peak - before;
    return static_cast<double>(peak) / static_cast<double>(weights);
  };
  EXPECT_GT(peak_in_weights(false), 3.5);  // weights, gradients, two moments
  EXPECT_LT(peak_in_weights(true), 1.5);
}

ON_EVERY_DEVICE(OffloadOnDevice);

}  // namespace
