// The topic `optimizer_state`: an optimizer over given tensors, trained on a smooth loss. If the
// document has a state in Python's structure, the optimizer starts from it. It returns its own
// state at the end.
//
//   {"kind": "AdamW", "dtype": "float32",
//    "groups": [{"options": {"lr": 0.1, "betas": [0.9, 0.99]}, "params": [{"shape": [2, 3], "values": [...]}]}],
//    "steps": [[0.5, null, 2.0], ...],
//    "state": {"values": {...}, "tensors": {"state.0.exp_avg": {"dtype": ..., "shape": ..., "values": ...}}},
//    "load_file": "optimizer.bin", "save_file": "optimizer.bin"}
//
// In each step every parameter has a factor, or null to leave it out of the loss. The loss is the
// sum of factor * (p - 1)^2 + sin(p). The result has the parameters and the state.
#include <accelerant/checkpoint/training_files.h>
#include <accelerant/optim/optimizer_state.h>
#include <optim/python_optimizer_state.h>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;
using torch::optim::OptimizerParamGroup;

at::Tensor whole_tensor_from(const json& tensor, const std::string& type) {
  return tensor_from(tensor.at("values"), at::TensorOptions(type_from(type)))
      .view(tensor.at("shape").get<std::vector<int64_t>>());
}

json whole_tensor_to(const at::Tensor& tensor) {
  return {{"dtype", type_to(tensor.scalar_type())},
          {"shape", tensor.sizes().vec()},
          {"values", tensor_to(tensor)}};
}

accelerant::NamedState state_from(const json& document) {
  accelerant::NamedState state{.values = document.at("values")};
  for (const auto& item : document.at("tensors").items()) {
    state.tensors.insert(
        item.key(), whole_tensor_from(item.value(), item.value().at("dtype").get<std::string>()));
  }
  return state;
}

json state_to(const accelerant::NamedState& state) {
  json tensors = json::object();
  for (const auto& item : state.tensors) tensors[item.key()] = whole_tensor_to(item.value());
  return {{"values", *state.values}, {"tensors", tensors}};
}

// Sets the given options through the saved form, so it needs no knowledge of the kinds.
void set_options(torch::optim::Optimizer& optimizer, const json& groups) {
  auto state = accelerant::optim::optimizer_state_dict(optimizer, {});
  for (std::size_t g = 0; g < groups.size(); ++g) {
    state.values["param_groups"][g].update(groups.at(g).at("options"));
  }
  accelerant::optim::load_optimizer_state_dict(optimizer, {}, state);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& kind, const std::vector<OptimizerParamGroup>& groups, const json& options) {
  using namespace torch::optim;
  if (kind == "SGD") return std::make_unique<SGD>(groups, SGDOptions(0.1));
  if (kind == "Adam") return std::make_unique<Adam>(groups);
  if (kind == "AdamW") return std::make_unique<AdamW>(groups);
  if (kind == "RMSprop") return std::make_unique<RMSprop>(groups);
  if (kind == "LBFGS") return std::make_unique<LBFGS>(groups);
  if (kind == "Adagrad") {  // uses this option when it is constructed
    const double first_sum = options.value("initial_accumulator_value", 0.0);
    return std::make_unique<Adagrad>(groups, AdagradOptions().initial_accumulator_value(first_sum));
  }
  throw BadDocument("unknown optimizer " + kind);
}

}  // namespace

json replay_optimizer_state(const json& document) {
  std::vector<at::Tensor> parameters;
  std::vector<OptimizerParamGroup> groups;
  for (const json& group : document.at("groups")) {
    std::vector<at::Tensor> of_group;
    for (const json& parameter : group.at("params")) {
      of_group.push_back(whole_tensor_from(parameter, document.at("dtype").get<std::string>()));
      parameters.push_back(of_group.back().requires_grad_());
    }
    groups.emplace_back(of_group);
  }
  return result_or_error([&]() -> json {
    const auto optimizer = make_optimizer(document.at("kind").get<std::string>(), groups,
                                          document.at("groups").at(0).at("options"));
    set_options(*optimizer, document.at("groups"));
    if (document.contains("state")) {
      const auto python = state_from(document.at("state"));
      accelerant::optim::load_optimizer_state_dict(
          *optimizer, {}, accelerant::optim::from_python_state(python, *optimizer, {}));
    }
    if (document.contains("load_file")) {
      accelerant::load_python_optimizer(*optimizer, {}, document.at("load_file"));
    }
    for (const json& factors : document.at("steps")) {
      optimizer->step([&] {
        optimizer->zero_grad();
        at::Tensor loss = torch::zeros({}, parameters[0].scalar_type());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (factors.at(i).is_null()) continue;
          loss = loss +
                 (factors.at(i).get<double>() * (parameters[i] - 1).pow(2) + parameters[i].sin())
                     .sum();
        }
        loss.backward();
        return loss;
      });
    }
    if (document.contains("save_file")) {
      accelerant::save_python_optimizer(*optimizer, {}, document.at("save_file"));
    }
    json result = {{"params", json::array()}};
    for (const at::Tensor& parameter : parameters) result["params"].push_back(tensor_to(parameter));
    result["state"] = state_to(accelerant::optim::to_python_state(
        accelerant::optim::optimizer_state_dict(*optimizer, {})));
    return result;
  });
}

}  // namespace replay
