// The topic `training`: a small classifier trained through the Accelerator. The document names the
// files with the initial weights and the data (float32, as in memory). The result has the loss of
// every batch, the learning rates, the final weights and the final buffers. Started as one of
// several processes, it trains with the others and returns the result of its own rank. With "join",
// {"batches": [3, 5], "divide_by_initial_world_size": true}, every epoch is a join of uneven
// inputs, and each rank takes at most its number of batches per epoch.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <fstream>
#include <limits>
#include <optional>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;

torch::Tensor floats_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw BadDocument("cannot open " + path);
  const auto size = static_cast<int64_t>(file.tellg());
  torch::Tensor values = torch::empty({size / 4}, torch::kFloat32);
  file.seekg(0);
  file.read(static_cast<char*>(values.data_ptr()), size);
  return values;
}

torch::nn::Sequential network(const json& document) {
  const json& layers = document.at("layers");
  const auto hidden = layers.at(1).get<int64_t>();
  torch::nn::Sequential net(torch::nn::Linear(layers.at(0).get<int64_t>(), hidden),
                            torch::nn::Tanh());
  if (document.value("batch_norm", false)) {
    net->push_back(torch::nn::BatchNorm1d(hidden));
  } else {
    net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden})));
  }
  net->push_back(torch::nn::Linear(hidden, layers.at(2).get<int64_t>()));
  const torch::Tensor weights = floats_in(document.at("weights").get<std::string>());
  const torch::NoGradGuard no_grad;
  int64_t start = 0;
  for (torch::Tensor& parameter : net->parameters()) {
    parameter.copy_(weights.narrow(0, start, parameter.numel()).view_as(parameter));
    start += parameter.numel();
  }
  return net;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_for(std::vector<torch::Tensor> parameters,
                                                       const json& options) {
  const auto kind = options.at("kind").get<std::string>();
  const auto lr = options.at("lr").get<double>();
  if (kind == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(lr).momentum(options.at("momentum").get<double>()));
  }
  if (kind == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        parameters,
        torch::optim::AdamWOptions(lr).weight_decay(options.at("weight_decay").get<double>()));
  }
  throw BadDocument("unknown optimizer " + kind);
}

accelerant::Precision precision_from(const std::string& name) {
  if (name == "fp16") return accelerant::Precision::fp16;
  if (name == "bf16") return accelerant::Precision::bf16;
  return accelerant::Precision::no;
}

std::optional<accelerant::Nonfinite> nonfinite_from(const json& name) {
  if (name.is_null()) return std::nullopt;
  if (name == "step") return accelerant::Nonfinite::step;
  if (name == "skip") return accelerant::Nonfinite::skip;
  throw BadDocument("unknown answer to inf and nan " + name.dump());
}

accelerant::ScheduleUnit schedule_unit_from(const std::string& name) {
  if (name == "update") return accelerant::ScheduleUnit::update;
  if (name == "unsharded_batch") return accelerant::ScheduleUnit::unsharded_batch;
  throw BadDocument("unknown unit of schedules " + name);
}

accelerant::dist::CommHook comm_hook_from(const std::string& name) {
  if (name == "no") return accelerant::dist::CommHook::no;
  if (name == "fp16") return accelerant::dist::CommHook::fp16;
  if (name == "bf16") return accelerant::dist::CommHook::bf16;
  throw BadDocument("unknown comm hook " + name);
}

json tensors_to(const std::vector<torch::Tensor>& tensors) {
  json result = json::array();
  for (const torch::Tensor& tensor : tensors) result.push_back(tensor_to(tensor.detach()));
  return result;
}

}  // namespace

json replay_training(const json& document) {
  const auto layers = document.at("layers");
  auto net = network(document);
  const auto optimizer_owner = optimizer_for(net->parameters(), document.at("optimizer"));

  // Rows of inputs, each with its class at the end.
  const auto rows =
      floats_in(document.at("data").get<std::string>()).view({-1, layers.at(0).get<int64_t>() + 1});
  const auto batches =
      accelerant::data::loader(accelerant::data::tensors(rows.slice(1, 0, -1).contiguous(),
                                                         rows.select(1, -1).to(torch::kLong)),
                               {.batch_size = document.at("batch_size").get<int64_t>()});

  accelerant::Accelerator accelerator(
      {.cpu = true,
       .mixed_precision = precision_from(document.value("precision", "no")),
       .gradient_accumulation = {.steps = document.at("accumulation").get<int64_t>()},
       .data_loader = {.split_batches = document.value("split_batches", false),
                       .even_batches = !document.contains("join")},
       .scaler = {.init_scale = document.value("init_scale", 65536.0),
                  .growth_interval = document.value("growth_interval", int64_t{2000})},
       .schedule_unit = schedule_unit_from(document.value("schedule_unit", "update")),
       .fused = document.value("fused", true),
       .nonfinite = nonfinite_from(document.value("nonfinite", json())),
       .data_parallel = {
           .comm_hook = {.hook = comm_hook_from(document.value("comm_hook", "no"))}}});
  const auto epochs = document.at("epochs").get<int64_t>();
  const auto updates = epochs * accelerator.updates_per_epoch(batches);
  auto cosine = accelerant::optim::cosine_with_warmup(
      *optimizer_owner,
      {.warmup_steps = document.at("warmup_steps").get<int64_t>(),
       .total_steps = document.value("schedule", true) ? document.value("total_steps", updates)
                                                       : int64_t{1} << 40});
  auto [scheduler, loader, model, optimizer] =
      accelerator.prepare(cosine, batches, net, optimizer_owner);

  const json clip = document.value("clip", json::object());
  const std::string clipping = clip.value("kind", "none");
  const bool counts_items = document.value("items", false);
  json losses = json::array();
  json rates = json::array();
  json norms = json::array();
  json skipped = json::array();
  const json join = document.value("join", json());
  const int64_t most_batches =
      join.is_null()
          ? std::numeric_limits<int64_t>::max()
          : join.at("batches").at(static_cast<size_t>(accelerator.process_index())).get<int64_t>();
  const auto train_epoch = [&] {
    int64_t batch = 0;
    for (auto&& [data, target] : loader) {
      if (batch++ == most_batches) break;
      const auto window = accelerator.accumulate(model);
      const torch::Tensor output = model(data);
      if (counts_items) {
        // Rows of class 0 do not count, so batches differ in their number of items.
        const auto loss = torch::nn::functional::cross_entropy(
            output, target,
            torch::nn::functional::CrossEntropyFuncOptions().ignore_index(0).reduction(
                torch::kSum));
        losses.push_back(number_to(loss.item<double>()));
        accelerator.backward(loss, target.ne(0).sum());
      } else {
        const auto loss = torch::nn::functional::cross_entropy(output, target);
        losses.push_back(number_to(loss.item<double>()));
        accelerator.backward(loss);
      }
      if (clipping == "norm") {
        const auto norm = accelerator.clip_grad_norm_(model, clip.at("value").get<double>());
        if (norm) norms.push_back(number_to(norm->item<double>()));
      } else if (clipping == "value") {
        accelerator.clip_grad_value_(model, clip.at("value").get<double>());
      }
      const auto result = optimizer.step();
      if (result.kind() == accelerant::StepResult::Kind::submitted) {
        skipped.push_back(result.skipped());
        rates.push_back(scheduler.get_last_lr().front());
      }
      scheduler.step();
      optimizer.zero_grad();
    }
  };
  for ([[maybe_unused]] const auto epoch : accelerator.epochs(epochs)) {
    if (join.is_null()) {
      train_epoch();
    } else {
      accelerator.join_uneven_inputs(
          {&model}, train_epoch,
          {.divide_by_initial_world_size = join.at("divide_by_initial_world_size").get<bool>()});
    }
  }
  return {{"losses", losses},
          {"lr", rates},
          {"norms", norms},
          {"skipped", skipped},
          {"weights", tensors_to(model.parameters())},
          {"buffers", tensors_to(net->buffers())},
          {"scale", accelerator.scaler().get_scale()}};
}

}  // namespace replay
