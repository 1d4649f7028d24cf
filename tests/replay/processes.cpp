// The topic `processes`: small models trained on several processes, each of which runs this program
// with the variables of torchrun. The document has a list of cases:
//   {"widths": [8, 6, 2], "seed": 1, "steps": 5, "bucket_cap_mb": 0.01 or null, "lr": 0.1,
//    "hook": {"hook": "power_sgd", "wrapper": "no", "matrix_approximation_rank": 1, ...} or null,
//    "local_sgd": 3 or null}
// The result has, for each case, the final parameters and the gradients of the last step. Initial
// weights and data are random numbers that Python draws in the same way from the same seed.
#include <accelerant/dist/data_parallel_options.h>
#include <accelerant/dist/local_sgd.h>
#include <accelerant/dist/world.h>
#include <dist/data_parallel.h>
#include <torch/torch.h>

#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using accelerant::dist::CommHook;
using accelerant::dist::CommHookOptions;
using accelerant::dist::CommWrapper;
using accelerant::dist::DataParallel;
using accelerant::dist::Environment;
using accelerant::dist::LocalSgd;
using accelerant::dist::LocalSgdOptions;
using accelerant::dist::NamedParameter;
using accelerant::dist::PowerSgdOptions;
using accelerant::dist::World;
using nlohmann::json;

CommHookOptions hook_from(const json& value) {
  if (value.is_null()) return {};
  const std::map<std::string, CommHook> hooks = {
      {"no", CommHook::no},
      {"fp16", CommHook::fp16},
      {"bf16", CommHook::bf16},
      {"power_sgd", CommHook::power_sgd},
      {"batched_power_sgd", CommHook::batched_power_sgd}};
  const std::map<std::string, CommWrapper> wrappers = {
      {"no", CommWrapper::no}, {"fp16", CommWrapper::fp16}, {"bf16", CommWrapper::bf16}};
  CommHookOptions options{.hook = hooks.at(value.at("hook")),
                          .wrapper = wrappers.at(value.at("wrapper"))};
  PowerSgdOptions& power_sgd = options.power_sgd;
  const auto read = [&](const char* name, auto& field) {
    if (value.contains(name)) value.at(name).get_to(field);
  };
  read("matrix_approximation_rank", power_sgd.matrix_approximation_rank);
  read("start_powerSGD_iter", power_sgd.start_iteration);
  read("min_compression_rate", power_sgd.min_compression_rate);
  read("use_error_feedback", power_sgd.use_error_feedback);
  read("warm_start", power_sgd.warm_start);
  read("orthogonalization_epsilon", power_sgd.orthogonalization_epsilon);
  read("random_seed", power_sgd.random_seed);
  read("batch_tensors_with_same_shape", power_sgd.batch_tensors_with_same_shape);
  return options;
}

torch::nn::Sequential layers_from(const std::vector<int64_t>& widths) {
  torch::nn::Sequential net;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  return net;
}

json train_case(const std::shared_ptr<World>& world, const json& document) {
  const auto widths = document.at("widths").get<std::vector<int64_t>>();
  torch::nn::Sequential net = layers_from(widths);
  torch::manual_seed(document.at("seed").get<uint64_t>());
  std::vector<NamedParameter> named;
  for (auto& parameter : net->named_parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.value().copy_(torch::randn(parameter.value().sizes()) * 0.3);
    named.push_back({.name = parameter.key(), .value = parameter.value()});
  }
  const auto optional_number = [&](const char* name) {
    const json& value = document.at(name);
    return value.is_null() ? std::nullopt : std::optional(value.get<double>());
  };
  DataParallel parallel(world, named, [] { return std::vector<at::Tensor>(); },
                        {.bucket_cap_mb = optional_number("bucket_cap_mb"),
                         .comm_hook = hook_from(document.at("hook"))});
  const auto between = optional_number("local_sgd");
  std::optional<LocalSgd> local_sgd;
  if (between) {
    local_sgd.emplace(world, net->parameters(),
                      LocalSgdOptions{.steps = static_cast<int64_t>(*between)});
  }
  torch::optim::SGD sgd(net->parameters(), document.at("lr").get<double>());
  for (int64_t step = 0; step < document.at("steps").get<int64_t>(); ++step) {
    const auto input = torch::randn({world->size(), 6, widths.front()})[world->rank()];
    const auto target = torch::randn({world->size(), 6, widths.back()})[world->rank()];
    sgd.zero_grad();
    parallel.before_forward(!between);
    const auto output = parallel.after_forward({net->forward(input)}, !between).front();
    torch::mse_loss(output, target).backward();
    sgd.step();
    if (local_sgd) local_sgd->step();
  }
  if (local_sgd) local_sgd->finish();
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->parameters()) {
    parameters.push_back(parameter.detach().flatten());
    gradients.push_back(parameter.grad().flatten());
  }
  return {{"parameters", tensor_to(torch::cat(parameters))},
          {"gradients", tensor_to(torch::cat(gradients))}};
}

}  // namespace

json replay_processes(const json& document) {
  const auto world = World::join(Environment::detect());
  json results = json::array();
  for (const json& each : document.at("cases")) results.push_back(train_case(world, each));
  return results;
}

}  // namespace replay
