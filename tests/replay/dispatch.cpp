// The topic `dispatch`: loads a saved model of linear layers into an empty one, places its parts by
// a device map, and runs it.
//   {"checkpoint": "folder", "layers": [[in, out], ...], "device_map": {"0": "cpu", "": "disk"},
//    "offload_folder": "folder", "dtype": null or "bfloat16", "zero_copy": true, "budget": null,
//    "input": "file", "output": "file", "save": "folder"}
// Layer i is the module "i"; between two layers is a GELU. `input` and `output` are safetensors with
// one tensor, "tensor". The model is saved to `save` while it is dispatched.
#include <accelerant/checkpoint/models.h>
#include <accelerant/paging/empty_weights.h>
#include <accelerant/paging/offload.h>
#include <torch/torch.h>

#include "topics.h"

namespace replay {
namespace {

using nlohmann::json;

struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const json& widths) {
    for (const json& width : widths) {
      layers.push_back(register_module(
          std::to_string(layers.size()),
          torch::nn::Linear(width.at(0).get<int64_t>(), width.at(1).get<int64_t>())));
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i](i == 0 ? x : torch::gelu(x));
    }
    return x;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Layers);

accelerant::DeviceMap device_map_from(const json& entries) {
  accelerant::DeviceMap map;
  for (const auto& item : entries.items()) {
    map.set(item.key(), item.value().get<std::string>());
  }
  return map;
}

}  // namespace

json replay_dispatch(const json& document) {
  Layers net = accelerant::init_empty_weights([&] { return Layers(document.at("layers")); });
  accelerant::LoadAndDispatchOptions options{
      .device_map = device_map_from(document.at("device_map")),
      .offload_folder = document.at("offload_folder"),
      .zero_copy = document.at("zero_copy")};
  if (!document.at("dtype").is_null()) options.dtype = torch::kBFloat16;
  if (!document.at("budget").is_null()) options.budget = document.at("budget").get<int64_t>();
  const auto loaded =
      accelerant::load_checkpoint_and_dispatch(net, document.at("checkpoint"), options);
  const at::NoGradGuard no_grad;
  const at::Tensor x = accelerant::load_tensors(document.at("input"))["tensor"];
  accelerant::save(net->forward(x), document.at("output"));
  accelerant::save_model(net, document.at("save"));
  return {{"missing", loaded.missing},
          {"unexpected", loaded.unexpected},
          {"offloaded", accelerant::has_offloaded_params(net)},
          {"in_place_bytes", accelerant::offload_statistics(net).in_place_bytes}};
}

}  // namespace replay
