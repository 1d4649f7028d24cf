// Replays operations on a GradScaler and its optimizers.
#include <accelerant/accelerant.h>

#include <functional>
#include <map>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using accelerant::GradScaler;
using nlohmann::json;

accelerant::GradScalerOptions options_from(const json& document) {
  accelerant::GradScalerOptions options;
  options.device = at::Device(document.value("device", "cpu")).type();
  const json fields = document.value("scaler", json::object());
  const auto number = [&](const char* key, double& field) {
    if (fields.contains(key)) field = number_from(fields[key]);
  };
  number("init_scale", options.init_scale);
  number("growth_factor", options.growth_factor);
  number("backoff_factor", options.backoff_factor);
  options.growth_interval = fields.value("growth_interval", options.growth_interval);
  options.enabled = fields.value("enabled", options.enabled);
  return options;
}

struct OptimizerUnderTest {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

OptimizerUnderTest optimizer_from(const json& description, at::Device device) {
  OptimizerUnderTest made;
  const at::ScalarType type = type_from(description.value("dtype", "float32"));
  for (const json& values : description.at("params")) {
    made.parameters.push_back(
        tensor_from(values, at::TensorOptions().device(device).dtype(type)).requires_grad_());
  }
  const std::string kind = description.at("kind");
  const double lr = number_from(description.at("lr"));
  if (kind == "sgd") {
    made.optimizer =
        std::make_unique<torch::optim::SGD>(made.parameters, torch::optim::SGDOptions(lr));
  } else if (kind == "adam") {
    made.optimizer =
        std::make_unique<torch::optim::Adam>(made.parameters, torch::optim::AdamOptions(lr));
  } else if (kind == "adamw") {
    made.optimizer =
        std::make_unique<torch::optim::AdamW>(made.parameters, torch::optim::AdamWOptions(lr));
  } else {
    throw BadDocument("unknown optimizer kind: " + kind);
  }
  return made;
}

json gradients_of(const OptimizerUnderTest& owner) {
  json result = json::array();
  for (const at::Tensor& parameter : owner.parameters)
    result.push_back(tensor_to(parameter.grad()));
  return result;
}

class ScalerReplay {
 public:
  explicit ScalerReplay(const json& document)
      : device_(document.value("device", "cpu")), scaler_(options_from(document)) {
    for (const json& description : document.value("optimizers", json::array())) {
      optimizers_.push_back(optimizer_from(description, device_));
    }
  }

  json run(const json& operation) {
    const auto known = operations_.find(operation.at("op").get<std::string>());
    if (known == operations_.end()) throw BadDocument("unknown op: " + operation.at("op").dump());
    return (this->*known->second)(operation);
  }

 private:
  using Operation = json (ScalerReplay::*)(const json&);

  OptimizerUnderTest& owner(const json& operation) {
    return optimizers_.at(operation.at("optimizer").get<std::size_t>());
  }

  json scale(const json& operation) {
    std::vector<at::Tensor> outputs;
    for (const json& value : operation.at("values")) {
      outputs.push_back(torch::scalar_tensor(number_from(value), at::kFloat).to(device_));
    }
    json values = json::array();
    for (const at::Tensor& scaled : scaler_.scale(outputs)) {
      values.push_back(number_to(scaled.item<double>()));
    }
    return {{"values", values}};
  }

  json grads(const json& operation) {
    OptimizerUnderTest& target = owner(operation);
    const json& values = operation.at("values");
    if (values.size() != target.parameters.size())
      throw BadDocument("grads: wrong number of values");
    for (std::size_t i = 0; i < values.size(); ++i) {
      at::Tensor& parameter = target.parameters[i];
      parameter.mutable_grad() =
          values[i].is_null() ? at::Tensor() : tensor_from(values[i], parameter.options());
    }
    return json::object();
  }

  json unscale(const json& operation) {
    OptimizerUnderTest& target = owner(operation);
    scaler_.unscale_(*target.optimizer);
    int found = 0;
    for (const at::Tensor& flag : scaler_.found_inf(*target.optimizer)) {
      if (flag.item<float>() != 0) found = 1;
    }
    return {{"grads", gradients_of(target)}, {"found_inf", found}};
  }

  json clip_grad_norm(const json& operation) {
    OptimizerUnderTest& target = owner(operation);
    const double norm_type =
        operation.contains("norm_type") ? number_from(operation["norm_type"]) : 2.0;
    const at::Tensor norm = accelerant::clip_grad_norm_(
        target.parameters, number_from(operation.at("max_norm")), {.norm_type = norm_type});
    return {{"norm", number_to(norm.item<double>())}, {"grads", gradients_of(target)}};
  }

  json clip_grad_value(const json& operation) {
    OptimizerUnderTest& target = owner(operation);
    accelerant::clip_grad_value_(target.parameters, number_from(operation.at("value")));
    return {{"grads", gradients_of(target)}};
  }

  json step(const json& operation) {
    OptimizerUnderTest& target = owner(operation);
    const bool skipped = scaler_.step(*target.optimizer).skipped();
    json params = json::array();
    for (const at::Tensor& parameter : target.parameters) params.push_back(tensor_to(parameter));
    return {{"skipped", skipped}, {"params", params}};
  }

  json update(const json& operation) {
    if (operation.contains("new_scale") && !operation["new_scale"].is_null()) {
      scaler_.update(number_from(operation["new_scale"]));
    } else {
      scaler_.update();
    }
    return {{"scale", number_to(scaler_.get_scale())},
            {"growth_tracker", scaler_.state_dict().value("_growth_tracker", 0)}};
  }

  json get_scale(const json&) { return {{"scale", number_to(scaler_.get_scale())}}; }

  json set(const json& operation) {
    if (operation.contains("growth_factor")) {
      scaler_.set_growth_factor(number_from(operation["growth_factor"]));
    }
    if (operation.contains("backoff_factor")) {
      scaler_.set_backoff_factor(number_from(operation["backoff_factor"]));
    }
    if (operation.contains("growth_interval")) {
      scaler_.set_growth_interval(operation["growth_interval"].get<int64_t>());
    }
    return json::object();
  }

  json state_dict(const json&) { return {{"state", scaler_.state_dict()}}; }

  json load_state_dict(const json& operation) {
    scaler_.load_state_dict(operation.at("state"));
    return json::object();
  }

  inline static const std::map<std::string, Operation> operations_ = {
      {"scale", &ScalerReplay::scale},
      {"grads", &ScalerReplay::grads},
      {"unscale_", &ScalerReplay::unscale},
      {"clip_grad_norm", &ScalerReplay::clip_grad_norm},
      {"clip_grad_value", &ScalerReplay::clip_grad_value},
      {"step", &ScalerReplay::step},
      {"update", &ScalerReplay::update},
      {"get_scale", &ScalerReplay::get_scale},
      {"set", &ScalerReplay::set},
      {"state_dict", &ScalerReplay::state_dict},
      {"load_state_dict", &ScalerReplay::load_state_dict},
  };

  at::Device device_;
  GradScaler scaler_;
  std::vector<OptimizerUnderTest> optimizers_;
};

}  // namespace

json replay_scaler(const json& document) {
  const json& operations = document.at("ops");
  return result_or_error([&]() -> json {
    ScalerReplay replay(document);
    json results = json::array();
    for (const json& operation : operations) {
      results.push_back(result_or_error([&] { return replay.run(operation); }));
    }
    return {{"results", results}};
  });
}

}  // namespace replay
