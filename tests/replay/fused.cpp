// The topic `fused`: an optimizer over given tensors, stepped by FusedStep with given gradients.
//
//   {"kind": "AdamW", "dtype": "float32", "maximize": false, "master_weights": false,
//    "groups": [{"options": {"lr": 0.1, "betas": [0.9, 0.99]}, "params": [{"shape": [2, 3], "values": [...]}]}],
//    "scaler": {"init_scale": 1024.0, "growth_interval": 5},      or null: none
//    "steps": [{"max_norm": 1.0, "unscale": true, "lr": [0.1], "grads": [[...], null, ...]}, ...]}
//
// Each step assigns the gradients, which already include the scale, and the learning rates if
// given. It unscales the gradients if asked, and clips them if there is a limit. The result has the
// parameters, norms, skipped steps, scale and state.
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/optim/fused_step.h>
#include <accelerant/optim/lion.h>
#include <accelerant/optim/optimizer_state.h>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;
using torch::optim::OptimizerParamGroup;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& kind, const std::vector<OptimizerParamGroup>& groups) {
  using namespace torch::optim;
  if (kind == "SGD") return std::make_unique<SGD>(groups, SGDOptions(0.1));
  if (kind == "Adam") return std::make_unique<Adam>(groups);
  if (kind == "AdamW") return std::make_unique<AdamW>(groups);
  if (kind == "RMSprop") return std::make_unique<RMSprop>(groups);
  if (kind == "Adagrad") return std::make_unique<Adagrad>(groups);
  if (kind == "Lion") return std::make_unique<accelerant::optim::Lion>(groups);
  throw BadDocument("unknown optimizer " + kind);
}

// Goes through the saved form, so it needs no knowledge of the kinds.
void set_options(torch::optim::Optimizer& optimizer, const json& groups) {
  auto state = accelerant::optim::optimizer_state_dict(optimizer, {});
  for (std::size_t g = 0; g < groups.size(); ++g) {
    state.values["param_groups"][g].update(groups.at(g).at("options"));
  }
  accelerant::optim::load_optimizer_state_dict(optimizer, {}, state);
}

class FusedReplay {
 public:
  explicit FusedReplay(const json& document) {
    const at::TensorOptions type(type_from(document.at("dtype")));
    std::vector<OptimizerParamGroup> groups;
    for (const json& group : document.at("groups")) {
      std::vector<at::Tensor> of_group;
      for (const json& parameter : group.at("params")) {
        of_group.push_back(tensor_from(parameter.at("values"), type)
                               .view(parameter.at("shape").get<std::vector<int64_t>>())
                               .requires_grad_());
        parameters_.push_back(of_group.back());
      }
      groups.emplace_back(of_group);
    }
    optimizer_ = make_optimizer(document.at("kind"), groups);
    set_options(*optimizer_, document.at("groups"));
    fused_.emplace(*optimizer_, accelerant::FusedStepOptions{
                                    .master_weights = document.value("master_weights", false),
                                    .maximize = document.value("maximize", false)});
    accelerant::GradScalerOptions options{.device = at::kCPU, .enabled = false};
    if (const json& given = document.at("scaler"); !given.is_null()) {
      options.enabled = true;
      options.init_scale = number_from(given.at("init_scale"));
      options.growth_interval = given.at("growth_interval").get<int64_t>();
    }
    scaler_ = accelerant::GradScaler(options);
  }

  json step(const json& step) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const json& values = step.at("grads").at(i);
      at::Tensor& parameter = parameters_[i];
      parameter.mutable_grad() =
          values.is_null() ? at::Tensor()
                           : tensor_from(values, parameter.options()).view(parameter.sizes());
    }
    if (step.contains("lr")) {
      for (std::size_t g = 0; g < optimizer_->param_groups().size(); ++g) {
        optimizer_->param_groups()[g].options().set_lr(number_from(step.at("lr").at(g)));
      }
    }
    scaler_.scale(torch::ones({}));
    json result = json::object();
    if (step.value("unscale", false)) scaler_.unscale_(*optimizer_);
    if (!step.at("max_norm").is_null()) {
      const at::Tensor norm = fused_->clip_grad_norm_(number_from(step.at("max_norm")), scaler_);
      result["norm"] = number_to(norm.item<double>());
    }
    result["skipped"] = fused_->step(scaler_).skipped();
    scaler_.update();
    return result;
  }

  json end() {
    json result = {{"params", json::array()}, {"scale", number_to(scaler_.get_scale())}};
    for (const at::Tensor& parameter : parameters_)
      result["params"].push_back(tensor_to(parameter));
    const auto state = accelerant::optim::optimizer_state_dict(*optimizer_, {});
    result["state"] = state.values->at("state");
    for (const auto& item : state.tensors) result["tensors"][item.key()] = tensor_to(item.value());
    return result;
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<accelerant::FusedStep> fused_;
  accelerant::GradScaler scaler_{accelerant::GradScalerOptions{.enabled = false}};
};

}  // namespace

json replay_fused(const json& document) {
  return result_or_error([&]() -> json {
    FusedReplay replay(document);
    json steps = json::array();
    for (const json& step : document.at("steps")) steps.push_back(replay.step(step));
    json result = replay.end();
    result["steps"] = std::move(steps);
    return result;
  });
}

}  // namespace replay
