// The topics of accelerant-replay. Each takes a document and returns its result; BadDocument or a
// JSON exception means that the document cannot be understood.
#pragma once

#include <nlohmann/json.hpp>

namespace replay {

nlohmann::json replay_accumulate(const nlohmann::json& document);
nlohmann::json replay_collectives(const nlohmann::json& document);
nlohmann::json replay_device_map(const nlohmann::ordered_json& document);
nlohmann::json replay_dispatch(const nlohmann::json& document);
nlohmann::json replay_fused(const nlohmann::json& document);
nlohmann::json replay_models(const nlohmann::json& document);
nlohmann::json replay_nn(const nlohmann::json& document);
nlohmann::json replay_scaler(const nlohmann::json& document);
nlohmann::json replay_processes(const nlohmann::json& document);
nlohmann::json replay_python_files(const nlohmann::json& document);
nlohmann::json replay_python_state(const nlohmann::json& document);
nlohmann::json replay_optimizer_state(const nlohmann::json& document);
nlohmann::json replay_safetensors(const nlohmann::json& document);
nlohmann::json replay_training(const nlohmann::json& document);
nlohmann::json replay_autocast(const nlohmann::json& document);
nlohmann::json replay_schedule(const nlohmann::json& document);
nlohmann::json replay_sharding(const nlohmann::json& document);
nlohmann::json replay_torch_archive(const nlohmann::json& document);
nlohmann::json replay_utilities(const nlohmann::json& document);

}  // namespace replay
