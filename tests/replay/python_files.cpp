// The topic `python_files`: single files, read and written again.
//   {"scaler": {"load": "a.pt", "save": "b.pt"}}
//   {"tensors": {"load": "a.safetensors", "save": "b.pt", "safe_serialization": false, "single": "name" or null}}
// The result of the first has the scaler's state, that of the second the names. The names of one
// tensor are grouped together.
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/checkpoint/training_files.h>

#include "refusal.h"
#include "topics.h"

namespace replay {
namespace {

using nlohmann::json;

json scaler_files(const json& paths) {
  accelerant::GradScaler scaler({.device = c10::DeviceType::CPU});
  accelerant::load_python_scaler(scaler, paths.at("load"));
  accelerant::save_python_scaler(scaler, paths.at("save"));
  return {{"scaler", scaler.state_dict()}};
}

json tensor_files(const json& request) {
  const auto tensors = accelerant::load_tensors(request.at("load"));
  const accelerant::SaveTensorsOptions options{.safe_serialization =
                                                   request.at("safe_serialization")};
  if (request.at("single").is_null()) {
    accelerant::save(tensors, request.at("save"), options);
  } else {
    accelerant::save(tensors[request.at("single").get<std::string>()], request.at("save"), options);
  }
  std::map<const void*, json> together;
  for (const auto& item : tensors)
    together[item.value().unsafeGetTensorImpl()].push_back(item.key());
  json names = json::array();
  for (const auto& [tensor, list] : together) names.push_back(list);
  return {{"names", names}};
}

}  // namespace

json replay_python_files(const json& document) {
  return result_or_error([&] {
    return document.contains("scaler") ? scaler_files(document.at("scaler"))
                                       : tensor_files(document.at("tensors"));
  });
}

}  // namespace replay
