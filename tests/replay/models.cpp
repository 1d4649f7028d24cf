// The topic `models`: loads a saved model into tensors that the document describes, and saves them
// again.
//   {"load": "folder or file", "save": "folder",
//    "tensors": [{"name": "a.weight", "dtype": "float32", "shape": [2, 3]},
//                {"name": "b.weight", "tied_to": "a.weight"}, ...],
//    "strict": true, "load_dtype": null or "float16", "save_dtype": null or "bfloat16",
//    "max_shard_size": "10GB", "safe_serialization": true}
// The result has the names that only one side has, and the files that were written.
#include <accelerant/checkpoint/models.h>
#include <torch/torch.h>

#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;

torch::ScalarType stored_type_from(const std::string& name) {
  static const std::map<std::string, torch::ScalarType> types = {
      {"float64", torch::kFloat64},
      {"float32", torch::kFloat32},
      {"float16", torch::kFloat16},
      {"bfloat16", torch::kBFloat16},
      {"int64", torch::kInt64},
      {"int32", torch::kInt32},
      {"int16", torch::kInt16},
      {"int8", torch::kInt8},
      {"uint8", torch::kUInt8},
      {"bool", torch::kBool},
      {"complex64", torch::kComplexFloat},
      {"float8_e4m3fn", torch::kFloat8_e4m3fn},
      {"float8_e5m2", torch::kFloat8_e5m2}};
  return types.at(name);
}

std::optional<torch::ScalarType> optional_type(const json& value) {
  if (value.is_null()) return std::nullopt;
  return stored_type_from(value);
}

accelerant::StateDict tensors_from(const json& tensors) {
  accelerant::StateDict state;
  for (const json& tensor : tensors) {
    const std::string name = tensor.at("name");
    if (tensor.contains("tied_to")) {
      state.insert(name, state[tensor.at("tied_to").get<std::string>()]);
      continue;
    }
    const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    state.insert(name, torch::empty(shape, stored_type_from(tensor.at("dtype"))));
  }
  return state;
}

}  // namespace

json replay_models(const json& document) {
  const auto state = tensors_from(document.at("tensors"));
  const auto loaded = accelerant::load_checkpoint_in_model(
      state, document.at("load"),
      {.strict = document.at("strict"), .dtype = optional_type(document.at("load_dtype"))});
  const auto saved =
      accelerant::save_model(state, document.at("save"),
                             {.max_shard_size = document.at("max_shard_size"),
                              .safe_serialization = document.at("safe_serialization"),
                              .dtype = optional_type(document.at("save_dtype"))});
  return {{"missing", loaded.missing},
          {"unexpected", loaded.unexpected},
          {"files", saved.files},
          {"total_size", saved.total_size}};
}

}  // namespace replay
