#include "accelerant/optim/optimizer_state.h"

#include <limits>

#include "optim/optimizer_nets.h"
#include "optim/python_optimizer_state.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"

namespace {

using accelerant::NamedState;
using accelerant::optim::load_optimizer_state_dict;
using accelerant::optim::optimizer_state_dict;
using accelerant::optim::ParameterNames;
using nlohmann::json;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

class EveryOptimizer : public testing::TestWithParam<OptimizerCase> {
 protected:
  void SetUp() override { torch::manual_seed(3); }
};
INSTANTIATE_TEST_SUITE_P(, EveryOptimizer, testing::ValuesIn(every_optimizer()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryOptimizer, ContinuesBitForBitInAFreshOne) {
  Training original(GetParam().make);
  original.run(0, 5);
  const NamedState saved = written_and_read(original.save());
  Training fresh(GetParam().make);
  fresh.take_weights_of(original);
  fresh.load(saved);
  EXPECT_EQ(fresh.save().values, original.save().values);
  EXPECT_TRUE(go_on_alike(original, fresh, 5, 5));
  EXPECT_EQ(fresh.save().values, original.save().values);

  // Without the state the weights would differ: the test can fail.
  if (GetParam().name == "sgd") return;
  Training other(GetParam().make);
  other.run(0, 5);
  other.take_weights_of(original);
  EXPECT_FALSE(go_on_alike(original, other, 10, 3));
}

TEST_P(EveryOptimizer, ContinuesBitForBitInOneThatHasGoneElsewhere) {
  Training original(GetParam().make);
  original.run(0, 4);
  const NamedState saved = written_and_read(original.save());
  Training other(GetParam().make);
  other.run(100, 9);
  other.take_weights_of(original);
  other.load(saved);
  EXPECT_TRUE(go_on_alike(original, other, 4, 6));
}

TEST_P(EveryOptimizer, ContinuesBitForBitByWayOfPython) {
  Training original(GetParam().make);
  original.run(0, 5);
  const NamedState python = accelerant::optim::to_python_state(written_and_read(original.save()));
  Training fresh(GetParam().make);
  fresh.take_weights_of(original);
  fresh.load(from_python_state(python, *fresh.optimizer, fresh.names()));
  EXPECT_EQ(fresh.save().values, original.save().values);
  EXPECT_TRUE(go_on_alike(original, fresh, 5, 5));
}

TEST_P(EveryOptimizer, ContinuesBitForBitFromTheFirstStepOn) {
  Training original(GetParam().make);
  original.run(0, 1);
  Training fresh(GetParam().make);
  fresh.take_weights_of(original);
  fresh.load(written_and_read(original.save()));
  EXPECT_TRUE(go_on_alike(original, fresh, 1, 3));
}

TEST_P(EveryOptimizer, StateOfOneThatHasNotStepped) {
  Training original(GetParam().make);
  const NamedState saved = written_and_read(original.save());
  Training other(GetParam().make);
  other.run(0, 3);
  other.take_weights_of(original);
  other.load(saved);
  EXPECT_EQ(other.optimizer->state().size(), original.optimizer->state().size());
  EXPECT_TRUE(go_on_alike(original, other, 0, 3));
}

TEST_P(EveryOptimizer, LoadingItsOwnStateChangesNothing) {
  Training original(GetParam().make);
  Training twin(GetParam().make);
  twin.take_weights_of(original);
  original.run(0, 4);
  twin.run(0, 4);
  original.load(original.save());
  EXPECT_TRUE(go_on_alike(original, twin, 4, 4));
}

TEST(OptimizerState, HasThePythonNames) {
  const NamedState state = adamw_training(2).save();
  const json& values = *state.values;
  EXPECT_EQ(values["kind"], "AdamW");
  EXPECT_EQ(values["state"]["first.weight"], json({{"step", 2}}));
  EXPECT_FALSE(values["state"].contains("idle.weight"));
  const json& group = values["param_groups"].at(0);
  EXPECT_EQ(group["params"], json({"first.weight", "first.bias", "last.weight", "last.bias",
                                   "idle.weight", "idle.bias"}));
  EXPECT_EQ(group["lr"], 0.01);
  EXPECT_EQ(group["betas"], json({0.9, 0.999}));
  EXPECT_EQ(group["eps"], 1e-8);
  EXPECT_EQ(group["weight_decay"], 0.01);
  EXPECT_EQ(group["amsgrad"], false);
  EXPECT_EQ(group.size(), 6u);
  EXPECT_TRUE(state.tensors.contains("exp_avg.first.weight"));
  EXPECT_TRUE(state.tensors.contains("exp_avg_sq.last.bias"));
  EXPECT_EQ(state.tensors.size(), 8u);
}

TEST(OptimizerState, ListsOfLbfgs) {
  Training training(
      maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3).max_eval(20)));
  training.run(0, 2);
  const NamedState state = training.save();
  const json& entry = state.values["state"]["first.weight"];
  EXPECT_EQ(entry["n_iter"], 6);
  EXPECT_GT(entry["old_dirs"], 0);
  EXPECT_EQ(entry["al"], 100);
  EXPECT_TRUE(state.tensors.contains("old_dirs[0].first.weight"));
  EXPECT_TRUE(state.tensors.contains("H_diag.first.weight"));
  EXPECT_EQ(state.values["state"].size(), 1u);
}

TEST(OptimizerState, OptionsOfEachGroupTakeEffect) {
  const auto make = [](double rate) {
    return [=](std::vector<torch::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
      const std::vector<torch::Tensor> first(parameters.begin(), parameters.begin() + 2);
      const std::vector<torch::Tensor> rest(parameters.begin() + 2, parameters.end());
      std::vector<torch::optim::OptimizerParamGroup> groups = {first, rest};
      auto optimizer = std::make_unique<SGD>(groups, SGDOptions(rate).momentum(0.9));
      optimizer->param_groups()[1].options().set_lr(rate / 2);
      return optimizer;
    };
  };
  Training original(make(0.2));
  original.run(0, 3);
  Training other(make(0.7));
  const auto* options = &other.optimizer->param_groups()[1].options();
  other.take_weights_of(original);
  other.load(written_and_read(original.save()));
  EXPECT_EQ(&other.optimizer->param_groups()[1].options(), options);
  EXPECT_EQ(other.optimizer->param_groups()[0].options().get_lr(), 0.2);
  EXPECT_EQ(other.optimizer->param_groups()[1].options().get_lr(), 0.1);
  EXPECT_TRUE(go_on_alike(original, other, 3, 3));
}

TEST(OptimizerState, TensorsAreWrittenInPlaceAndNeverShared) {
  Training original = adamw_training(2);
  const NamedState saved = original.save();
  Training other = adamw_training(2);
  const NamedState before = other.save();
  other.load(saved);
  const NamedState after = other.save();
  for (const auto& item : after.tensors) {
    EXPECT_TRUE(item.value().is_same(before.tensors[item.key()])) << item.key();
    EXPECT_TRUE(item.value().equal(saved.tensors[item.key()])) << item.key();
  }
  Training fresh(maker<AdamW>(AdamWOptions(0.01)));
  fresh.load(saved);
  for (const auto& item : fresh.save().tensors) {
    EXPECT_FALSE(item.value().is_alias_of(saved.tensors[item.key()])) << item.key();
  }
}

TEST(OptimizerState, KeepsTheSavedTypeAndTheLayoutOfTheParameter) {
  auto weight =
      torch::ones({2, 3, 4, 5}, torch::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  weight.requires_grad_();
  SGD source({weight}, SGDOptions(0.1).momentum(0.9));
  weight.mutable_grad() = torch::ones_like(weight);
  source.step();
  NamedState state = optimizer_state_dict(source, {});
  state.tensors["momentum_buffer.group.0.0"] =
      state.tensors["momentum_buffer.group.0.0"].to(torch::kFloat).contiguous();
  load_optimizer_state_dict(source, {}, state);
  const auto loaded = optimizer_state_dict(source, {}).tensors["momentum_buffer.group.0.0"];
  EXPECT_EQ(loaded.dtype(), torch::kFloat);
  EXPECT_EQ(loaded.strides(), weight.strides());
  EXPECT_TRUE(loaded.equal(torch::ones_like(loaded)));
}

TEST(OptimizerState, OrderWithinAGroupDoesNotMatter) {
  Training original = adamw_training(2);
  Training other([](std::vector<torch::Tensor> parameters) {
    std::ranges::reverse(parameters);
    return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
  });
  other.take_weights_of(original);
  other.load(original.save());
  EXPECT_TRUE(go_on_alike(original, other, 2, 3));
}

TEST(OptimizerState, LooseTensorsAreCalledByTheirPlace) {
  auto a = torch::ones({2}).requires_grad_();
  auto b = torch::ones({3}).requires_grad_();
  SGD optimizer({a, b}, SGDOptions(0.1).momentum(0.9));
  b.mutable_grad() = torch::ones({3});
  optimizer.step();
  const NamedState state = optimizer_state_dict(optimizer, {});
  EXPECT_EQ(state.values["param_groups"][0]["params"], json({"group.0.0", "group.0.1"}));
  EXPECT_EQ(state.tensors.keys(), std::vector<std::string>{"momentum_buffer.group.0.1"});
}

TEST(OptimizerState, ATensorThatIsHeldTwice) {
  auto tied = torch::ones({2}).requires_grad_();
  SGD optimizer({tied, tied}, SGDOptions(0.1).momentum(0.9));
  tied.mutable_grad() = torch::ones({2});
  optimizer.step();
  const NamedState state = written_and_read(optimizer_state_dict(optimizer, {}));
  optimizer.step();
  load_optimizer_state_dict(optimizer, {}, state);
  const NamedState after = optimizer_state_dict(optimizer, {});
  EXPECT_EQ(after.values, state.values);
  EXPECT_TRUE(after.tensors[0].value().equal(state.tensors[0].value()));
  const NamedState python = accelerant::optim::to_python_state(state);
  EXPECT_EQ(python.values["param_groups"][0]["params"], json({0, 0}));
}

TEST(OptimizerState, NumbersThatJsonLacks) {
  Training training(maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(2)));
  training.run(0, 1);
  auto& state =
      static_cast<torch::optim::LBFGSParamState&>(*training.optimizer->state().begin()->second);
  state.prev_loss(std::numeric_limits<double>::infinity());
  const NamedState saved = written_and_read(training.save());
  state.prev_loss(1.0);
  training.load(saved);
  EXPECT_EQ(state.prev_loss(), std::numeric_limits<double>::infinity());
}

TEST(ParameterNames, TiedWeightsKeepTheFirstNameAndClashesAreRefused) {
  const auto a = torch::ones({1});
  ParameterNames names;
  names.add("a", a);
  names.add("again", a);
  names.add("a", a);
  EXPECT_EQ(*names.find(a), "a");
  EXPECT_EQ(names.find(torch::ones({1})), nullptr);
  EXPECT_TRUE(contains(error_of([&] { names.add("a", torch::ones({1})); }), "the name 'a'"));

  torch::nn::Linear one(1, 1), two(1, 1);
  ParameterNames models;
  models.add(one->named_parameters(), "one.");
  models.add(two->named_parameters(), "two.");
  EXPECT_EQ(*models.find(two->weight), "two.weight");
}

TEST(OptimizerState, AnUnknownClassIsRefused) {
  FusedAdam own({torch::ones({1}).requires_grad_()});
  const std::string error = error_of([&] { optimizer_state_dict(own, {}); });
  EXPECT_TRUE(contains(error, "FusedAdam"));
  EXPECT_TRUE(contains(error, "RMSprop, Lion, LBFGS"));
  EXPECT_TRUE(contains(error, "register the object for checkpointing"));
}

}  // namespace
