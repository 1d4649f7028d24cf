// Compares FusedStep with the optimizers' own steps.
#include "optim/fused_step_helpers.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/on_device.h"

namespace {

using accelerant::FusedStep;
using accelerant::StepResult;

class FusedStepTest : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    torch::manual_seed(7);
  }
};
ON_EVERY_DEVICE(FusedStepTest);

TEST_P(FusedStepTest, StepsAsTheOptimizerItself) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    const auto [ours, theirs, optimizer, stock] = twins(kind, options());
    FusedStep fused(*optimizer);
    for (int i = 0; i < 10; ++i) {
      set_random_gradients(ours);
      if (i % 3 == 1) ours[2].mutable_grad().reset();
      copy_gradients(ours, theirs);
      EXPECT_EQ(fused.step().kind(), StepResult::Kind::submitted);
      stock->step();
      optimizer->zero_grad();
    }
    expect_close(ours, theirs, 2e-5, kind.name);
  }
}

TEST_P(FusedStepTest, KeepsItsStateInTheOptimizer) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    const auto [ours, theirs, optimizer, stock] = twins(kind, options());
    FusedStep fused(*optimizer);
    for (int i = 0; i < 3; ++i) {
      set_random_gradients(ours);
      copy_gradients(ours, theirs);
      fused.step();
      stock->step();
    }
    // Saving fetches the step counts.
    const auto saved = accelerant::optim::optimizer_state_dict(*optimizer, {});
    const auto expected = accelerant::optim::optimizer_state_dict(*stock, {});
    EXPECT_EQ(saved.values, expected.values) << kind.name;
    for (const auto& item : expected.tensors) {
      const at::Tensor* const tensor = saved.tensors.find(item.key());
      ASSERT_NE(tensor, nullptr) << kind.name << " " << item.key();
      EXPECT_TRUE(torch::allclose(*tensor, item.value(), 1e-4, 1e-4))
          << kind.name << " " << item.key();
    }
    EXPECT_EQ(saved.tensors.size(), expected.tensors.size()) << kind.name;
  }
}

// Half of a training with torch's own step and half with ours, in both orders.
TEST_P(FusedStepTest, TakesOverInTheMiddleAndGivesBack) {
  for (const OptimizerCase& kind : fused_optimizers()) {
    for (const bool fused_first : {true, false}) {
      const auto [ours, theirs, optimizer, stock] = twins(kind, options());
      const auto train = [&](bool by_fused) {
        std::optional<FusedStep> fused;
        if (by_fused) fused.emplace(*optimizer);
        for (int i = 0; i < 4; ++i) {
          set_random_gradients(ours);
          copy_gradients(ours, theirs);
          if (fused) {
            fused->step();
          } else {
            optimizer->step();
          }
          stock->step();
        }
        if (fused) fused->sync();
      };
      train(fused_first);
      train(!fused_first);
      expect_close(ours, theirs, 2e-5, kind.name);
    }
  }
}

TEST_P(FusedStepTest, ClipsWithoutWritingGradients) {
  for (const double max_norm : {0.5, 1e6, 0.0}) {
    const auto ours = awkward_parameters(options());
    const auto theirs = copies_of(ours);
    torch::optim::SGD optimizer(ours, 0.1);
    torch::optim::SGD stock(theirs, 0.1);
    FusedStep fused(optimizer);
    set_random_gradients(ours);
    copy_gradients(ours, theirs);
    const at::Tensor norm = fused.clip_grad_norm_(max_norm);
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
    EXPECT_EQ(norm.device(), device());
    const at::Tensor before = ours[0].grad().clone();
    fused.step();
    stock.step();
    EXPECT_TRUE(torch::equal(ours[0].grad(), before));
    expect_close(ours, theirs, 1e-6, "clipped");
  }
}

TEST_P(FusedStepTest, TheSmallestLimitHoldsForOneStep) {
  const auto run = [&](const std::vector<double>& limits) {
    at::Tensor parameter = full({2}, 0.0).requires_grad_();
    torch::optim::SGD optimizer({parameter}, 1.0);
    FusedStep fused(optimizer);
    parameter.mutable_grad() = torch::tensor({3.0F, 4.0F}, options());
    for (const double limit : limits) {
      EXPECT_FLOAT_EQ(fused.clip_grad_norm_(limit).item<float>(), 5.0F);
    }
    fused.step();
    const double first = parameter.norm().item<double>();
    fused.step();  // the limit no longer applies
    return std::pair(first, parameter.norm().item<double>() - first);
  };
  EXPECT_NEAR(run({2.0, 1.0, 3.0}).first, 1.0, 1e-5);
  EXPECT_NEAR(run({2.0}).second, 5.0, 1e-5);
}

TEST_P(FusedStepTest, GradientsThatChangeAfterClippingAreJudgedAnew) {
  at::Tensor parameter = full({2}, 0.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  parameter.mutable_grad() = torch::tensor({3.0F, 4.0F}, options());
  fused.clip_grad_norm_(1.0);
  parameter.mutable_grad().mul_(100);
  fused.step();
  EXPECT_NEAR(parameter.norm().item<double>(), 1.0, 1e-5);
}

TEST_P(FusedStepTest, NormsBeyondTheSquareOfTheLargestFloat) {
  at::Tensor parameter = full({5}, 0.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  parameter.mutable_grad() = full({5}, 1e30);
  EXPECT_NEAR(fused.clip_grad_norm_(1.0).item<double>() / (std::sqrt(5.0) * 1e30), 1.0, 1e-6);
  fused.step();
  EXPECT_NEAR(parameter.norm().item<double>(), 1.0, 1e-5);
}

TEST_P(FusedStepTest, NotedFactors) {
  for (const bool as_tensor : {false, true}) {
    at::Tensor parameter = full({2}, 0.0).requires_grad_();
    torch::optim::SGD optimizer({parameter}, 1.0);
    FusedStep fused(optimizer);
    parameter.mutable_grad() = torch::tensor({3.0F, 4.0F}, options());
    if (as_tensor) {
      fused.multiply_gradients(full({}, 0.25));
      fused.multiply_gradients(full({}, 2.0));
    } else {
      fused.multiply_gradients(0.5);
    }
    EXPECT_FLOAT_EQ(fused.clip_grad_norm_(100.0).item<float>(), 2.5F);
    fused.step();
    EXPECT_FLOAT_EQ(parameter.norm().item<float>(), 2.5F);
    fused.multiply_gradients(0.0);
    fused.discard();
    fused.step();
    EXPECT_FLOAT_EQ(parameter.norm().item<float>(), 7.5F);
  }
}

TEST_P(FusedStepTest, Maximizes) {
  at::Tensor parameter = full({2}, 1.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 0.5);
  FusedStep fused(optimizer, {.maximize = true});
  parameter.mutable_grad() = full({2}, 2.0);
  fused.step();
  EXPECT_TRUE(torch::equal(parameter, full({2}, 2.0)));
}

TEST_P(FusedStepTest, OptionsCountFromTheNextStep) {
  at::Tensor first = full({3}, 0.0).requires_grad_();
  at::Tensor second = full({3}, 0.0).requires_grad_();
  torch::optim::SGD optimizer({first}, 1.0);
  FusedStep fused(optimizer);
  for (at::Tensor* parameter : {&first, &second}) parameter->mutable_grad() = full({3}, 1.0);
  fused.step();
  optimizer.param_groups()[0].options().set_lr(10.0);
  fused.step();
  EXPECT_TRUE(torch::equal(first, full({3}, -11.0)));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {second}, std::make_unique<torch::optim::SGDOptions>(100.0)));
  fused.step();
  EXPECT_TRUE(torch::equal(first, full({3}, -21.0)));
  EXPECT_TRUE(torch::equal(second, full({3}, -100.0)));
  // Momentum begins later: its first step is the gradient itself, as in torch.
  auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[1].options());
  options.momentum(0.5).dampening(0.9);
  fused.step();
  EXPECT_TRUE(torch::equal(second, full({3}, -200.0)));
}

TEST_P(FusedStepTest, ParametersMayMove) {
  at::Tensor parameter = full({4}, 1.0).requires_grad_();
  torch::optim::AdamW optimizer({parameter}, torch::optim::AdamWOptions(0.1).weight_decay(0));
  FusedStep fused(optimizer);
  parameter.mutable_grad() = full({4}, 1.0);
  fused.step();
  parameter.set_data(full({4}, 5.0));
  fused.step();
  EXPECT_TRUE(torch::allclose(parameter, full({4}, 4.9)));
}

TEST_P(FusedStepTest, StridesOfAllKinds) {
  const auto make = [&](int which) -> at::Tensor {
    if (which == 0)
      return torch::randn({2, 3, 4, 5}, options()).contiguous(at::MemoryFormat::ChannelsLast);
    if (which == 1) return torch::randn({6, 5}, options()).t();
    if (which == 2) return torch::randn({6, 10}, options()).slice(1, 0, 10, 2);  // with gaps
    return torch::randn({7, 9}, options());
  };
  for (int of_parameter = 0; of_parameter < 4; ++of_parameter) {
    for (const bool packed_gradient : {false, true}) {
      at::Tensor ours = make(of_parameter).detach().requires_grad_();
      at::Tensor theirs = ours.detach().clone().requires_grad_();
      torch::optim::AdamW optimizer({ours}, torch::optim::AdamWOptions(0.1));
      torch::optim::AdamW stock({theirs}, torch::optim::AdamWOptions(0.1));
      FusedStep fused(optimizer);
      for (int i = 0; i < 4; ++i) {
        const at::Tensor gradient = torch::randn(ours.sizes(), options());
        // Every second element of a wider tensor.
        ours.mutable_grad() =
            packed_gradient ? torch::stack({gradient, gradient}, -1).select(-1, 0) : gradient;
        theirs.mutable_grad() = gradient.clone();
        fused.clip_grad_norm_(1.0);
        torch::nn::utils::clip_grad_norm_({theirs}, 1.0);
        fused.step();
        stock.step();
      }
      expect_close({ours}, {theirs}, 1e-5, std::to_string(of_parameter));
    }
  }
}

TEST_P(FusedStepTest, WritesAreSeenByAutograd) {
  at::Tensor parameter = full({2}, 1.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  FusedStep fused(optimizer);
  const at::Tensor loss = parameter.pow(2).sum();
  parameter.mutable_grad() = full({2}, 1.0);
  fused.step();
  EXPECT_ANY_THROW(loss.backward());
}

TEST_P(FusedStepTest, IsDeterministic) {
  const auto run = [&] {
    torch::manual_seed(3);
    const auto parameters = awkward_parameters(options());
    torch::optim::AdamW optimizer(parameters);
    FusedStep fused(optimizer);
    for (int i = 0; i < 5; ++i) {
      set_random_gradients(parameters);
      fused.clip_grad_norm_(1.0);
      fused.step();
    }
    return parameters;
  };
  expect_same(run(), run(), "twice the same");
}

TEST_P(FusedStepTest, SparseGradientsAreLeftToTheOptimizer) {
  at::Tensor table = full({4, 2}, 1.0).requires_grad_();
  at::Tensor dense = full({2}, 1.0).requires_grad_();
  torch::optim::SGD optimizer({table, dense}, torch::optim::SGDOptions(1.0));
  FusedStep fused(optimizer);
  const GatheredLog log;
  for (int i = 0; i < 2; ++i) {
    table.mutable_grad() = torch::sparse_coo_tensor(
        torch::tensor({{1}}, options(at::kLong)), torch::tensor({{3.0F, 4.0F}}, options()), {4, 2});
    dense.mutable_grad() = full({2}, 0.0);
    EXPECT_FLOAT_EQ(fused.clip_grad_norm_(1.0).item<float>(), 5.0F);
    fused.step();
  }
  EXPECT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(torch::allclose(table[1], torch::tensor({-0.2F, -0.6F}, options())));
  table.mutable_grad() = full({4, 2}, 1.0);
  fused.step();
  EXPECT_TRUE(torch::equal(table[0], full({2}, 0.0)));
}

TEST_P(FusedStepTest, NothingToDo) {
  at::Tensor parameter = full({2}, 1.0).requires_grad_();
  torch::optim::Adam optimizer({parameter});
  FusedStep fused(optimizer);
  EXPECT_EQ(fused.step().kind(), StepResult::Kind::nothing_to_do);
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_EQ(fused.clip_grad_norm_(1.0).item<float>(), 0.0F);
}

TEST_P(FusedStepTest, AClosureIsTheOptimizersOwnStep) {
  at::Tensor parameter = full({2}, 1.0).requires_grad_();
  torch::optim::Adam optimizer({parameter}, 0.1);
  FusedStep fused(optimizer);
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    if (i == 1) {
      const auto result = fused.step([&] {
        const at::Tensor loss = parameter.sum();
        loss.backward();
        return loss;
      });
      EXPECT_TRUE(result.loss().defined());
    } else {
      parameter.sum().backward();
      fused.step();
    }
  }
  EXPECT_TRUE(torch::allclose(parameter, full({2}, 0.7)));
}

class OwnSgd : public torch::optim::SGD {
  using SGD::SGD;
};

TEST(FusedStepRefusals, SayWhy) {
  at::Tensor parameter = torch::zeros({2}).requires_grad_();
  OwnSgd derived({parameter}, torch::optim::SGDOptions(0.1));
  EXPECT_TRUE(contains(*FusedStep::why_not(derived), "OwnSgd"));
  torch::optim::LBFGS lbfgs({parameter});
  EXPECT_TRUE(contains(*FusedStep::why_not(lbfgs), "LBFGS"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { FusedStep fused(lbfgs); }), "cannot step this optimizer"));
  torch::optim::SGD sgd({parameter}, 0.1);
  EXPECT_EQ(FusedStep::why_not(sgd), std::nullopt);
  FusedStep fused(sgd);
  EXPECT_TRUE(contains(whole_error_of([&] { fused.clip_grad_norm_(-1.0); }), "0 or more"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { fused.multiply_gradients(torch::ones({2})); }), "one element"));
  torch::optim::SGD apart({parameter, torch::zeros({2}, at::kMeta)}, 0.1);
  EXPECT_TRUE(contains(*FusedStep::why_not(apart), "several devices"));
}

}  // namespace
