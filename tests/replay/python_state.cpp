// The topic `python_state`: reads a folder written by Accelerate's save_state.
//   {"folder": "...", "rank": 0, "draw": 5,
//    "schedules": [{"kind": "StepLR", "base_lr": 0.1, "step_size": 3, "gamma": 0.5, "steps": 4}, null, ...]}
// The result has everything in the folder, random numbers drawn after the generators were restored,
// and for each described schedule the rate at the saved step and at `steps` more.
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/optim/lr_scheduler.h>

#include <cmath>

#include "checkpoint/python_state.h"
#include "core/files.h"
#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using accelerant::checkpoint::PythonStateFolder;
using nlohmann::json;
namespace optim = accelerant::optim;

json tree_to(const accelerant::NamedState& state) {
  json tensors = json::object();
  for (const auto& item : state.tensors) {
    tensors[item.key()] = {{"dtype", type_to(item.value().scalar_type())},
                           {"shape", item.value().sizes().vec()},
                           {"values", tensor_to(item.value())}};
  }
  return {{"values", *state.values}, {"tensors", tensors}};
}

optim::LrSchedule schedule_from(const json& options) {
  const std::string kind = options.at("kind");
  if (kind == "StepLR") {
    return optim::StepDecay{.step_size = options.at("step_size"), .gamma = options.at("gamma")};
  }
  if (kind == "CosineAnnealingLR") return optim::CosineAnnealing{.t_max = options.at("t_max")};
  if (kind == "OneCycleLR") {
    return optim::OneCycle{.total_steps = options.at("total_steps")};  // rises to base_lr
  }
  if (kind == "LambdaLR") {
    return optim::Lambda{.factor = [](int64_t step) { return std::pow(0.9, step); }};
  }
  if (kind == "SequentialLR") {
    return optim::Sequential{
        .schedules = {optim::Exponential{.gamma = 0.9}, optim::Exponential{.gamma = 0.8}},
        .milestones = {3}};
  }
  if (kind == "ChainedScheduler") {
    return optim::Chained{{optim::Exponential{.gamma = 0.9}, optim::Exponential{.gamma = 0.8}}};
  }
  throw BadDocument("unknown schedule " + kind);
}

json rates_of(const json& options, const json& python) {
  torch::optim::SGD optimizer({torch::ones(1)},
                              torch::optim::SGDOptions(options.at("base_lr")).momentum(0.9));
  const int64_t steps = options.at("steps");
  json rates = json::array();
  const auto go_on = [&](auto& scheduler, auto... metric) {
    scheduler.load_state_dict(
        accelerant::checkpoint::schedule_state_of(python, scheduler.state_dict()));
    rates.push_back(scheduler.get_last_lr().at(0));
    for (int64_t i = 0; i < steps; ++i) {
      scheduler.step(metric...);
      rates.push_back(scheduler.get_last_lr().at(0));
    }
  };
  if (options.at("kind") == "ReduceLROnPlateau") {
    optim::ReduceLrOnPlateau scheduler(
        optimizer, {.factor = options.at("factor"), .patience = options.at("patience")});
    go_on(scheduler, 1.0);
  } else {
    optim::LrScheduler scheduler(optimizer, schedule_from(options));
    go_on(scheduler);
  }
  return rates;
}

}  // namespace

json replay_python_state(const json& document) {
  const std::string folder = document.at("folder");
  return result_or_error([&]() -> json {
    const PythonStateFolder saved(folder);
    json result = {{"unread", saved.unread()}, {"ranks", saved.ranks()}};
    for (const char* key : {"models", "optimizers", "schedulers", "rates"}) {
      result[key] = json::array();
    }
    for (int64_t i = 0; i < saved.models(); ++i) {
      result["models"].push_back(accelerant::name_of(saved.model_file(i)));
    }
    for (int64_t i = 0; i < saved.optimizers(); ++i) {
      result["optimizers"].push_back(tree_to(saved.optimizer(i)));
    }
    for (int64_t i = 0; i < saved.schedulers(); ++i) {
      const json python = saved.scheduler(i);
      result["schedulers"].push_back(python);
      const json options = document.at("schedules").at(static_cast<std::size_t>(i));
      result["rates"].push_back(options.is_null() ? json() : rates_of(options, python));
    }
    if (const auto scaler = saved.scaler()) {
      result["scaler"] = *scaler;
      accelerant::GradScaler ours({.device = c10::DeviceType::CPU});
      ours.load_state_dict(*scaler);
      result["loaded_scaler"] = ours.state_dict();
    }
    const int64_t rank = document.value("rank", 0);
    if (const auto step = saved.step(rank)) result["step"] = *step;
    if (const auto random = saved.random(rank)) {
      const auto before = accelerant::RandomState::capture();
      result["skipped"] = random->restore();
      result["drawn"] = tensor_to(torch::rand({document.value("draw", 0)}));
      before.restore();
    }
    return result;
  });
}

}  // namespace replay
