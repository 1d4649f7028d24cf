// States that do not fit an optimizer.
#include "optim/optimizer_nets.h"
#include "support/expect_error.h"

namespace {

using accelerant::NamedState;
using nlohmann::json;
using torch::optim::AdamW;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Loads the state after `spoil` has changed it. Returns the error, after which the optimizer must
// be unchanged.
template <class Spoil>
std::string refusal(Training& training, Spoil&& spoil) {
  const NamedState before = written_and_read(training.save());
  NamedState state = written_and_read(training.save());
  // If any of it were loaded, it would show.
  for (auto& item : state.tensors) item.value().fill_(77);
  for (auto& group : state.values["param_groups"]) group["lr"] = 77.0;
  spoil(state);
  const std::string error = whole_error_of([&] { training.load(state); });
  const NamedState after = training.save();
  EXPECT_EQ(after.values, before.values);
  expect_same_tensors(after, before);
  return error;
}

TEST(OptimizerStateErrors, AllFaultsAtOnceAndNothingIsChanged) {
  Training training = adamw_training(2);
  const std::string error = refusal(training, [](NamedState& state) {
    auto& group = state.values["param_groups"][0];
    group["params"][1] = "first.bios";
    group["eps"] = "small";
    group["maximize"] = false;
    group.erase("amsgrad");
    state.values["state"]["last.weight"]["step"] = -1;
    state.values["state"]["stranger"] = json::object();
    state.tensors["exp_avg.first.weight"] = torch::ones({4, 4});
    state.tensors["exp_avg_sq.first.weight"] = torch::ones({4, 3}, torch::kLong);
    state.tensors.erase("exp_avg_sq.last.bias");
    state.tensors.insert("exp_avg.nobody", torch::ones({1}));
  });
  for (const char* part :
       {"does not match this AdamW", "lacks 'first.bias'", "has 'first.bios'",
        "'eps' of group 0 is \"small\", not a number", "an option 'maximize'", "lacks 'amsgrad'",
        "'step' of the state of 'last.weight' is -1", "a state for 'stranger'",
        "'exp_avg.first.weight' is a tensor of float [4, 4]",
        "'exp_avg_sq.first.weight' is a tensor of long", "'exp_avg_sq.last.bias' is missing",
        "'exp_avg.nobody' does not belong to any parameter"}) {
    EXPECT_TRUE(contains(error, part));
  }
}

TEST(OptimizerStateErrors, OtherKindsAndGroups) {
  Training training = adamw_training(2);
  const NamedState sgd = Training(maker<SGD>(SGDOptions(0.1))).save();
  EXPECT_TRUE(contains(refusal(training, [&](NamedState& state) { state = sgd; }),
                       "it is the state of an optimizer of type SGD"));
  EXPECT_TRUE(contains(refusal(training,
                               [](NamedState& state) {
                                 state.values["param_groups"].push_back(
                                     state.values["param_groups"][0]);
                               }),
                       "it has 2 param groups"));
}

TEST(OptimizerStateErrors, WhatIsNoStateAtAll) {
  Training training = adamw_training(2);
  const std::vector<json> bad = {
      json(),
      json::object(),
      {{"kind", 3}, {"param_groups", {}}, {"state", {}}},
      {{"kind", "Adafactor"}, {"param_groups", json::array()}, {"state", json::object()}},
      {{"kind", "AdamW"}, {"param_groups", {{{"lr", 1}}}}, {"state", json::object()}},
      {{"kind", "AdamW"}, {"param_groups", {{{"params", {1}}}}}, {"state", json::object()}},
      {{"kind", "AdamW"}, {"param_groups", json::array()}, {"state", {{"x", 3}}}},
  };
  for (const json& values : bad) {
    EXPECT_TRUE(contains(refusal(training, [&](NamedState& state) { state.values = values; }),
                         "not the state of an optimizer"))
        << values;
  }
}

TEST(OptimizerStateErrors, TensorsThatTheOptionsNeed) {
  Training adam = adamw_training(2);
  EXPECT_TRUE(contains(
      refusal(adam, [](NamedState& state) { state.values["param_groups"][0]["amsgrad"] = true; }),
      "'max_exp_avg_sq.first.weight' is missing"));
  Training rmsprop(maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01)));
  rmsprop.run(0, 1);
  const std::string error = refusal(rmsprop, [](NamedState& state) {
    state.values["param_groups"][0]["momentum"] = 0.5;
    state.values["param_groups"][0]["centered"] = true;
  });
  EXPECT_TRUE(contains(error, "'momentum_buffer.first.weight' is missing"));
  EXPECT_TRUE(contains(error, "'grad_avg.first.weight' is missing"));
}

// libtorch would write beyond the end of its lists.
TEST(OptimizerStateErrors, ListsOfLbfgsThatDoNotFit) {
  Training training(
      maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3).max_eval(20)));
  training.run(0, 2);
  EXPECT_TRUE(contains(
      refusal(training,
              [](NamedState& state) { state.values["param_groups"][0]["history_size"] = 1; }),
      "'al' of 'first.weight' has the length 100"));
  EXPECT_TRUE(contains(
      refusal(training, [](NamedState& state) { state.values["state"]["first.weight"]["ro"] = 1; }),
      "the list 'ro'"));
  EXPECT_TRUE(contains(
      refusal(training, [](NamedState& state) { state.tensors.erase("old_dirs[0].first.weight"); }),
      "'old_dirs[0].first.weight' is missing"));
  EXPECT_TRUE(contains(refusal(training,
                               [](NamedState& state) {
                                 auto& names = state.values["param_groups"][0]["params"];
                                 std::swap(names[0], names[1]);
                               }),
                       "in a different order"));
}

TEST(OptimizerStateErrors, ALongListOfFaultsIsCut) {
  Training training = adamw_training(2);
  const std::string error = refusal(training, [](NamedState& state) {
    for (int i = 0; i < 30; ++i) {
      state.tensors.insert("sum.x" + std::to_string(i), torch::ones({1}));
    }
  });
  EXPECT_TRUE(contains(error, "and 10 more"));
}

}  // namespace
