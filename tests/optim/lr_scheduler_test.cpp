#include "accelerant/optim/lr_scheduler.h"

#include <accelerant/amp/step_result.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerant::optim;
using accelerant::StepResult;

std::vector<at::Tensor> parameters() { return {torch::zeros({2}).requires_grad_()}; }

torch::optim::SGD two_groups(double first, double second) {
  torch::optim::SGD optimizer(parameters(), first);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      parameters(), std::make_unique<torch::optim::SGDOptions>(second)));
  return optimizer;
}

std::vector<double> rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> result;
  for (const auto& group : optimizer.param_groups()) result.push_back(group.options().get_lr());
  return result;
}

template <class Options>
Options& options_of(torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return static_cast<Options&>(optimizer.param_groups().at(group).options());
}

using Rates = std::vector<double>;

TEST(LrScheduler, TheFirstRateIsInForceAtOnce) {
  auto optimizer = two_groups(1.0, 0.5);
  auto scheduler = linear_with_warmup(optimizer, {.warmup_steps = 2, .total_steps = 4});
  EXPECT_EQ(rates(optimizer), (Rates{0.0, 0.0}));
  EXPECT_EQ(scheduler.base_lrs(), (Rates{1.0, 0.5}));
  EXPECT_EQ(scheduler.last_step(), 0);
  EXPECT_EQ(&scheduler.optimizer(), &optimizer);
  scheduler.step();
  EXPECT_EQ(rates(optimizer), (Rates{0.5, 0.25}));
  EXPECT_EQ(scheduler.get_last_lr(), (Rates{0.5, 0.25}));
  scheduler.step(2);
  EXPECT_EQ(rates(optimizer), (Rates{0.5, 0.25}));
  EXPECT_EQ(scheduler.last_step(), 3);
  scheduler.step(0);
  EXPECT_EQ(scheduler.last_step(), 3);
  EXPECT_TRUE(contains(whole_error_of([&] { scheduler.step(-1); }), "got -1"));
}

TEST(LrScheduler, TellsTheRatesOfAnyStep) {
  auto optimizer = two_groups(1.0, 0.5);
  auto scheduler = cosine_with_warmup(optimizer, {.warmup_steps = 2, .total_steps = 9});
  std::vector<Rates> told;
  for (int64_t step = 0; step < 12; ++step) told.push_back(scheduler.rates_at(step));
  EXPECT_EQ(scheduler.last_step(), 0);
  for (const Rates& expected : told) {
    EXPECT_EQ(rates(optimizer), expected);
    scheduler.step();
  }
  EXPECT_EQ(scheduler.rates_at(3), told[3]);
  EXPECT_TRUE(contains(whole_error_of([&] { scheduler.rates_at(-1); }), "got -1"));
}

// The purpose of it all: the optimizer steps with the scheduled rate.
TEST(LrScheduler, TheOptimizerUsesTheRate) {
  at::Tensor parameter = torch::zeros({1}).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 1.0);
  auto scheduler = constant_with_warmup(optimizer, {.warmup_steps = 2});
  for (const double expected : {0.0, -0.5, -1.5, -2.5}) {
    parameter.mutable_grad() = torch::ones({1});
    optimizer.step();
    scheduler.step();
    EXPECT_DOUBLE_EQ(parameter.item<double>(), expected);
  }
}

TEST(LrScheduler, ASkippedUpdateDoesNotCount) {
  torch::optim::SGD optimizer(parameters(), 1.0);
  auto scheduler = exponential(optimizer, {.gamma = 0.5});
  scheduler.step(StepResult::decided(/*skipped=*/true));
  scheduler.step(StepResult(StepResult::Kind::accumulating));
  scheduler.step(StepResult(StepResult::Kind::nothing_to_do));
  scheduler.step(StepResult::undecided(torch::ones({})));
  EXPECT_EQ(scheduler.last_step(), 0);
  scheduler.step(StepResult::decided(false));
  scheduler.step(StepResult::undecided(torch::zeros({})));
  EXPECT_EQ(rates(optimizer), Rates{0.25});
}

TEST(LrScheduler, NewGroupsEnterWithTheirOwnRate) {
  torch::optim::SGD optimizer(parameters(), 1.0);
  auto scheduler = exponential(optimizer, {.gamma = 0.5});
  scheduler.step();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      parameters(), std::make_unique<torch::optim::SGDOptions>(16.0)));
  EXPECT_EQ(scheduler.get_last_lr(), Rates{0.5});
  scheduler.step();
  EXPECT_EQ(rates(optimizer), (Rates{0.25, 4.0}));
  EXPECT_EQ(scheduler.base_lrs(), (Rates{1.0, 16.0}));
  optimizer.param_groups().pop_back();
  EXPECT_TRUE(contains(whole_error_of([&] { scheduler.step(); }), "lost a param group"));
}

TEST(LrScheduler, AListOfTheWrongLengthIsRefusedBeforeAnythingChanges) {
  auto optimizer = two_groups(1.0, 0.5);
  EXPECT_TRUE(
      contains(whole_error_of([&] { one_cycle(optimizer, {.max_lr = {1.0}, .total_steps = 3}); }),
               "max_lr"));
  EXPECT_TRUE(contains(
      whole_error_of([&] { lambda(optimizer, {.per_group = {[](int64_t) { return 1.0; }}}); }),
      "one per param group"));
  EXPECT_EQ(rates(optimizer), (Rates{1.0, 0.5}));

  auto scheduler = one_cycle(optimizer, {.max_lr = {1.0, 2.0}, .total_steps = 3});
  const Rates before = rates(optimizer);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(parameters()));
  EXPECT_TRUE(contains(whole_error_of([&] { scheduler.step(); }), "expected 3 values"));
  EXPECT_EQ(scheduler.last_step(), 0);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), before[0]);
}

TEST(LrScheduler, EndLrMustBeBelowTheRate) {
  torch::optim::SGD optimizer(parameters(), 1e-8);
  EXPECT_TRUE(contains(
      whole_error_of([&] { polynomial_with_warmup(optimizer, {.total_steps = 3}); }), "end_lr"));
}

TEST(LrScheduler, OneCycleMovesMomentum) {
  const OneCycle cycle{.max_lr = 1.0, .total_steps = 10, .pct_start = 0.5, .base_momentum = 0.8};
  torch::optim::SGD sgd(parameters(), torch::optim::SGDOptions(0.1).momentum(0.3));
  torch::optim::RMSprop rmsprop(parameters());
  torch::optim::Adam adam(parameters());
  torch::optim::AdamW adamw(parameters());
  auto on_sgd = one_cycle(sgd, cycle);
  auto on_rmsprop = one_cycle(rmsprop, cycle);
  auto on_adam = one_cycle(adam, cycle);
  auto on_adamw = one_cycle(adamw, cycle);
  const auto expect_momentum = [&](double expected) {
    using namespace torch::optim;
    EXPECT_DOUBLE_EQ(options_of<SGDOptions>(sgd).momentum(), expected);
    EXPECT_DOUBLE_EQ(options_of<RMSpropOptions>(rmsprop).momentum(), expected);
    EXPECT_DOUBLE_EQ(std::get<0>(options_of<AdamOptions>(adam).betas()), expected);
    EXPECT_DOUBLE_EQ(std::get<0>(options_of<AdamWOptions>(adamw).betas()), expected);
    EXPECT_EQ(std::get<1>(options_of<AdamWOptions>(adamw).betas()), 0.999);
  };
  expect_momentum(0.95);
  for (auto* scheduler : {&on_sgd, &on_rmsprop, &on_adam, &on_adamw}) scheduler->step(4);
  expect_momentum(0.8);
  for (auto* scheduler : {&on_sgd, &on_rmsprop, &on_adam, &on_adamw}) scheduler->step(100);
  expect_momentum(0.95);
}

TEST(LrScheduler, OneCycleWithoutMomentum) {
  torch::optim::Adagrad optimizer(parameters());
  const std::string message =
      whole_error_of([&] { one_cycle(optimizer, {.max_lr = 1.0, .total_steps = 10}); });
  EXPECT_TRUE(contains(message, "optimizer must support momentum or beta1"));
  EXPECT_TRUE(contains(message, "cycle_momentum = false"));
  one_cycle(optimizer, {.max_lr = 1.0, .total_steps = 10, .cycle_momentum = false});
  EXPECT_NEAR(rates(optimizer)[0], 1.0 / 25, 1e-15);

  torch::optim::SGD sgd(parameters(), torch::optim::SGDOptions(0.1).momentum(0.3));
  one_cycle(sgd, {.total_steps = 10, .cycle_momentum = false});
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(sgd).momentum(), 0.3);
}

TEST(LrScheduler, StateRoundTrip) {
  const OneCycle cycle{.max_lr = {1.0, 2.0}, .total_steps = 20};
  auto first = two_groups(1.0, 0.5);
  auto source = one_cycle(first, cycle);
  source.step(7);
  const std::string text = source.state_dict().dump();

  auto second = two_groups(0.125, 0.25);  // the base rates come with the state
  auto target = one_cycle(second, cycle);
  target.load_state_dict(nlohmann::json::parse(text));
  EXPECT_EQ(target.last_step(), 7);
  EXPECT_EQ(target.base_lrs(), (Rates{1.0, 0.5}));
  EXPECT_EQ(rates(second), rates(first));
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(second, 1).momentum(),
            options_of<torch::optim::SGDOptions>(first, 1).momentum());
  source.step();
  target.step();
  EXPECT_EQ(rates(second), rates(first));
}

TEST(LrScheduler, ABadStateIsRefusedWhole) {
  auto optimizer = two_groups(1.0, 0.5);
  auto scheduler = exponential(optimizer, {.gamma = 0.5});
  scheduler.step();
  const nlohmann::json good = scheduler.state_dict();
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad["last_epoch"] = 9;
    bad[key] = value;
    const std::string message = whole_error_of([&] { scheduler.load_state_dict(bad); });
    EXPECT_EQ(scheduler.state_dict(), good) << key << ' ' << value;
    EXPECT_EQ(rates(optimizer), (Rates{0.5, 0.25}));
    return message;
  };
  EXPECT_TRUE(contains(refused("last_epoch", -1), "invalid 'last_epoch'"));
  EXPECT_TRUE(contains(refused("last_epoch", 1.5), "an integer"));
  EXPECT_TRUE(contains(refused("last_epoch", UINT64_MAX), "an integer"));
  EXPECT_TRUE(contains(refused("base_lrs", {1.0}), "one per param group"));
  EXPECT_TRUE(contains(refused("base_lrs", {1.0, nullptr}), "finite"));
  EXPECT_TRUE(contains(refused("base_lrs", 1.0), "a list"));
  EXPECT_TRUE(contains(refused("_last_lr", {"x", "y"}), "finite"));
  nlohmann::json incomplete = good;
  incomplete.erase("base_lrs");
  EXPECT_TRUE(
      contains(whole_error_of([&] { scheduler.load_state_dict(incomplete); }), "'base_lrs'"));
  EXPECT_TRUE(contains(whole_error_of([&] { scheduler.load_state_dict(3); }), "a JSON object"));
}

TEST(LrScheduler, CanBeMovedAndAssigned) {
  auto optimizer = two_groups(1.0, 0.5);
  std::vector<LrScheduler> schedulers;
  schedulers.push_back(exponential(optimizer, {.gamma = 0.5}));
  schedulers.front().step();
  LrScheduler moved = std::move(schedulers.front());
  moved.step();
  EXPECT_EQ(rates(optimizer), (Rates{0.25, 0.125}));
}

TEST(LrScheduler, WarnsOfRatesThatAnotherSchedulerHasSet) {
  torch::optim::SGD optimizer(parameters(), 1.0);
  const GatheredLog log;
  constant_with_warmup(optimizer, {.warmup_steps = 5});
  EXPECT_TRUE(log.messages().empty());
  constant(optimizer);
  EXPECT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(contains(log.text(), "all base rates are 0"));
}

TEST(LrScheduler, EveryKindHasAFunction) {
  torch::optim::SGD optimizer(parameters(), 1.0);
  const auto rate_at_3 = [&](auto make) {
    optimizer.param_groups()[0].options().set_lr(1.0);
    LrScheduler scheduler = make();
    scheduler.step(3);
    return rates(optimizer)[0];
  };
  EXPECT_EQ(rate_at_3([&] { return constant(optimizer); }), 1.0);
  EXPECT_EQ(rate_at_3([&] { return constant_with_warmup(optimizer, {.warmup_steps = 4}); }), 0.75);
  EXPECT_EQ(rate_at_3([&] { return linear_with_warmup(optimizer, {.total_steps = 6}); }), 0.5);
  EXPECT_NEAR(rate_at_3([&] { return cosine_with_warmup(optimizer, {.total_steps = 6}); }), 0.5,
              1e-15);
  EXPECT_NEAR(rate_at_3([&] {
                return cosine_with_hard_restarts(optimizer, {.total_steps = 12, .cycles = 2});
              }),
              0.5, 1e-15);
  EXPECT_EQ(rate_at_3([&] {
              return polynomial_with_warmup(optimizer,
                                            {.total_steps = 6, .end_lr = 0.0, .power = 2.0});
            }),
            0.25);
  EXPECT_EQ(rate_at_3([&] { return inverse_sqrt(optimizer, {.timescale = 1}); }), 0.5);
  EXPECT_EQ(
      rate_at_3([&] {
        return warmup_stable_decay(
            optimizer,
            {.stable_steps = 1, .decay_steps = 4, .decay_type = WarmupStableDecay::Shape::linear});
      }),
      0.5);
  EXPECT_EQ(rate_at_3([&] { return step_decay(optimizer, {.step_size = 2, .gamma = 0.5}); }), 0.5);
  EXPECT_EQ(rate_at_3([&] {
              return multi_step(optimizer, {.milestones = {3, 1}, .gamma = 0.5});
            }),
            0.25);
  EXPECT_EQ(rate_at_3([&] { return exponential(optimizer, {.gamma = 0.5}); }), 0.125);
  EXPECT_NEAR(rate_at_3([&] { return cosine_annealing(optimizer, {.t_max = 6}); }), 0.5, 1e-15);
  EXPECT_EQ(rate_at_3([&] {
              return one_cycle(optimizer, {.max_lr = 7.0, .total_steps = 8, .pct_start = 0.5});
            }),
            7.0);
  EXPECT_EQ(rate_at_3([&] {
              return lambda(optimizer, {.factor = [](int64_t step) { return double(step); }});
            }),
            3.0);
  EXPECT_EQ(rate_at_3([&] {
              return chained(optimizer, {{Exponential{.gamma = 0.5}, Exponential{.gamma = 2.0}}});
            }),
            1.0);
  EXPECT_EQ(rate_at_3([&] {
              return sequential(optimizer, {.schedules = {Constant{}, Exponential{.gamma = 0.5}},
                                            .milestones = {2}});
            }),
            0.5);
}

}  // namespace
