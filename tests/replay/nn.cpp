// The topic `nn`: a stack of blocks (LayerNorm, Linear, GELU, Linear, Dropout, and a sum with the
// input) made from a seed, run forward and backward with activation checkpoints.
//
//   {"seed": 3, "width": 8, "blocks": 4, "bias": true, "dropout": 0.2, "shape": [2, 3], "autocast": "bfloat16",
//    "segments": 2, "preserve_rng_state": true, "early_stop": true, "nested": false}
//
// Without segments each block is a checkpoint; with `nested` another checkpoint contains them all.
// The input is drawn after the weights, with `width` as its last dimension. The result has the
// output, the gradients, and a random number drawn at the end.
#include <accelerant/amp/autocast.h>
#include <accelerant/nn/activation_checkpoint.h>
#include <accelerant/nn/layers.h>

#include <optional>

#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, bool bias, double p)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module(
            "up", accelerant::nn::Linear(torch::nn::LinearOptions(width, 3 * width).bias(bias)))),
        down(register_module(
            "down", accelerant::nn::Linear(torch::nn::LinearOptions(3 * width, width).bias(bias)))),
        dropout(register_module("dropout", torch::nn::Dropout(p))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return x + dropout(down(torch::gelu(up(norm(x)))));
  }

  torch::nn::LayerNorm norm;
  accelerant::nn::Linear up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

torch::Tensor run(const json& document, torch::nn::Sequential& net, const torch::Tensor& input) {
  using accelerant::nn::checkpoint;
  const accelerant::nn::CheckpointOptions options{
      .preserve_rng_state = document.at("preserve_rng_state").get<bool>(),
      .early_stop = document.at("early_stop").get<bool>()};
  if (document.contains("segments")) {
    return accelerant::nn::checkpoint_sequential(net, document.at("segments").get<int64_t>(), input,
                                                 options);
  }
  const auto one_by_one = [&net, options](torch::Tensor x) {
    for (auto& block : *net) x = checkpoint(options, block, x);
    return x;
  };
  return document.at("nested").get<bool>() ? checkpoint(options, one_by_one, input)
                                           : one_by_one(input);
}

}  // namespace

json replay_nn(const json& document) {
  torch::manual_seed(document.at("seed").get<uint64_t>());
  const auto width = document.at("width").get<int64_t>();
  torch::nn::Sequential net;
  for (int64_t i = 0; i < document.at("blocks").get<int64_t>(); ++i) {
    net->push_back(
        Block(width, document.at("bias").get<bool>(), document.at("dropout").get<double>()));
  }
  auto shape = document.at("shape").get<std::vector<int64_t>>();
  shape.push_back(width);
  const auto input = torch::randn(shape).requires_grad_();

  torch::Tensor output;
  {
    std::optional<accelerant::AutocastGuard> autocast;
    if (document.contains("autocast")) {
      autocast.emplace(accelerant::AutocastOptions{
          .device_type = at::kCPU, .dtype = type_from(document.at("autocast").get<std::string>())});
    }
    output = run(document, net, input);
  }
  output.to(torch::kFloat).square().sum().backward();

  json gradients = json::object();
  for (const auto& item : net->named_parameters()) {
    gradients[item.key()] = tensor_to(item.value().grad());
  }
  return {{"output", tensor_to(output.detach().to(torch::kFloat))},
          {"input", tensor_to(input.grad())},
          {"parameters", gradients},
          {"next", tensor_to(torch::rand({1}))}};
}

}  // namespace replay
