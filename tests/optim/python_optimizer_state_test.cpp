// The structure itself; optimizer_state_test.py tests that Python reads and writes it.
#include "optim/python_optimizer_state.h"

#include "optim/optimizer_nets.h"
#include "support/expect_error.h"

namespace {

using accelerant::NamedState;
using accelerant::optim::from_python_state;
using accelerant::optim::to_python_state;
using nlohmann::json;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST(PythonOptimizerState, Structure) {
  const NamedState python = to_python_state(adamw_training(3).save());
  const json& values = *python.values;
  EXPECT_EQ(values["state"], json({{"0", json::object()},
                                   {"1", json::object()},
                                   {"2", json::object()},
                                   {"3", json::object()}}));
  EXPECT_EQ(values["param_groups"], json::array({{{"lr", 0.01},
                                                  {"betas", {0.9, 0.999}},
                                                  {"eps", 1e-8},
                                                  {"weight_decay", 0.01},
                                                  {"amsgrad", false},
                                                  {"maximize", false},
                                                  {"foreach", nullptr},
                                                  {"capturable", false},
                                                  {"differentiable", false},
                                                  {"fused", nullptr},
                                                  {"decoupled_weight_decay", true},
                                                  {"params", {0, 1, 2, 3, 4, 5}}}}));
  EXPECT_EQ(python.tensors.size(), 12u);
  const at::Tensor step = python.tensors["state.2.step"];
  EXPECT_EQ(step.dtype(), torch::kFloat);
  EXPECT_EQ(step.dim(), 0);
  EXPECT_EQ(step.item<float>(), 3);
}

TEST(PythonOptimizerState, ListsHaveNullWhereTheirTensorsAre) {
  Training training(maker<LBFGS>(LBFGSOptions(0.1).max_iter(3).max_eval(20).history_size(7)));
  training.run(0, 1);
  const NamedState python = to_python_state(training.save());
  const json& entry = python.values["state"]["0"];
  EXPECT_EQ(entry["al"], json(std::vector<json>(7)));
  EXPECT_EQ(entry["n_iter"], 3);
  EXPECT_TRUE(entry["t"].is_number());
  EXPECT_TRUE(python.tensors.contains("state.0.old_dirs.0"));
  EXPECT_TRUE(python.tensors.contains("state.0.d"));
}

// Loads the state of `training` in Python's form back into it, after `change` has changed it.
template <class Change>
void load_changed(Training& training, Change&& change) {
  NamedState python = to_python_state(written_and_read(training.save()));
  change(python);
  training.load(from_python_state(python, *training.optimizer, training.names()));
}

TEST(PythonOptimizerState, OtherFormsOfNumbers) {
  Training training = adamw_training(3);
  load_changed(training, [](NamedState& python) {
    python.tensors.erase("state.0.step");
    python.values["state"]["0"]["step"] = 8;  // as in older versions
    python.tensors["state.1.step"] = torch::tensor(9, torch::kLong);
    python.values["param_groups"][0]["weight_decay"] = 0;  // an int
    python.values["param_groups"][0].erase("lr");
    python.tensors.insert("param_groups.0.lr", torch::tensor(0.5));
    python.values["param_groups"][0]["initial_lr"] = 7.0;
    python.values["param_groups"][0]["fused"] = true;
  });
  const json values = *training.save().values;
  EXPECT_EQ(values["state"]["first.weight"]["step"], 8);
  EXPECT_EQ(values["state"]["first.bias"]["step"], 9);
  EXPECT_EQ(values["param_groups"][0]["weight_decay"], 0.0);
  EXPECT_EQ(values["param_groups"][0]["lr"], 0.5);
}

TEST(PythonOptimizerState, FirstStateOfLbfgsHasANumberForATensor) {
  Training training(maker<LBFGS>(LBFGSOptions(0.1).max_iter(1)));
  training.run(0, 1);
  load_changed(training, [](NamedState& python) {
    python.tensors.erase("state.0.H_diag");
    python.values["state"]["0"]["H_diag"] = 1;
    python.values["state"]["0"].erase("t");
    python.tensors.insert("state.0.t", torch::tensor(0.25));
  });
  const NamedState state = training.save();
  EXPECT_EQ(state.tensors["H_diag.first.weight"].item<float>(), 1);
  EXPECT_EQ(state.values["state"]["first.weight"]["t"], 0.25);
}

TEST(PythonOptimizerState, AnEntryWithoutABufferIsNone) {
  Training training(maker<SGD>(SGDOptions(0.1).momentum(0.9)));
  training.run(0, 1);
  load_changed(training, [](NamedState& python) {
    python.tensors.erase("state.0.momentum_buffer");
    python.values["state"]["0"]["momentum_buffer"] = nullptr;
  });
  const json state = training.save().values["state"];
  EXPECT_FALSE(state.contains("first.weight"));
  EXPECT_TRUE(state.contains("first.bias"));
  training.run(1, 1);
}

TEST(PythonOptimizerState, ParamNamesInAnotherOrderDecide) {
  Training training = adamw_training(3);
  const NamedState before = written_and_read(training.save());
  load_changed(training, [](NamedState& python) {
    auto& group = python.values["param_groups"][0];
    group["param_names"] = {"idle.bias",   "idle.weight", "last.bias",
                            "last.weight", "first.bias",  "first.weight"};
    group["params"] = {5, 4, 3, 2, 1, 0};
  });
  expect_same_tensors(training.save(), before);
}

template <class Change>
std::string refusal_of_changed(Training& training, Change&& change) {
  return whole_error_of([&] { load_changed(training, change); });
}

TEST(PythonOptimizerStateErrors, WhatLibtorchLacks) {
  Training training = adamw_training(3);
  const std::string error = refusal_of_changed(training, [](NamedState& python) {
    auto& group = python.values["param_groups"][0];
    group["maximize"] = true;
    group["decoupled_weight_decay"] = false;
    group.erase("eps");
    python.values["state"]["0"]["momentum"] = 1.0;
    python.values["state"]["17"] = json::object();
    python.tensors.insert("state.0.other", torch::ones({1}));
    python.tensors["state.1.step"] = torch::ones({2});
    python.tensors.erase("state.2.exp_avg");
    python.values["state"]["2"]["exp_avg"] = 5;
  });
  for (const char* part :
       {"that of a torch::optim::AdamW", "maximize=true", "decoupled_weight_decay=false",
        "group 0 has no 'eps'", "a field 'momentum'", "the parameter 17", "'state.0.other'",
        "'state.1.step' has 2 elements", "'state.2.exp_avg' is 5, not a tensor"}) {
    EXPECT_TRUE(contains(error, part));
  }
  Training adam(maker<Adam>(AdamOptions(0.01)));
  EXPECT_TRUE(contains(
      refusal_of_changed(adam,
                         [](NamedState& python) {
                           python.values["param_groups"][0]["decoupled_weight_decay"] = true;
                         }),
      "load it into an AdamW"));
}

TEST(PythonOptimizerStateErrors, OtherGroups) {
  Training training = adamw_training(3);
  EXPECT_TRUE(contains(refusal_of_changed(training,
                                          [](NamedState& python) {
                                            python.values["param_groups"][0]["params"].push_back(6);
                                          }),
                       "group 0 has 7 parameters"));
  EXPECT_TRUE(
      contains(refusal_of_changed(
                   training, [](NamedState& python) { python.values["param_groups"].clear(); }),
               "it has 0 param groups"));
  EXPECT_TRUE(
      contains(refusal_of_changed(training, [](NamedState& python) { python.values = json(3); }),
               "no dict 'state'"));
  EXPECT_TRUE(
      contains(refusal_of_changed(
                   training, [](NamedState& python) { python.tensors["state.0.step"].add_(0.5); }),
               "'step' of the state of 'first.weight' is 3.5"));
}

}  // namespace
