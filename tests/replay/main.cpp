// accelerant-replay TOPIC: reads a JSON document from standard input, runs it through the library
// and writes the result to standard output. A Python test feeds the same document to the original
// and compares. With --lines every input line is a document and every output line its result.
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "topics.h"
#include "values.h"

namespace {

using nlohmann::json;

const std::map<std::string, std::function<json(const json&)>> kTopics = {
    {"accumulate", replay::replay_accumulate},
    {"autocast", replay::replay_autocast},
    {"collectives", replay::replay_collectives},
    {"fused", replay::replay_fused},
    {"dispatch", replay::replay_dispatch},
    {"models", replay::replay_models},
    {"nn", replay::replay_nn},
    {"optimizer_state", replay::replay_optimizer_state},
    {"processes", replay::replay_processes},
    {"python_files", replay::replay_python_files},
    {"python_state", replay::replay_python_state},
    {"safetensors", replay::replay_safetensors},
    {"scaler", replay::replay_scaler},
    {"schedule", replay::replay_schedule},
    {"sharding", replay::replay_sharding},
    {"torch_archive", replay::replay_torch_archive},
    {"training", replay::replay_training},
    {"utilities", replay::replay_utilities},
};

// Its documents are parsed with their keys in order.
const std::string kDeviceMap = "device_map";

bool is_topic(const std::string& name) { return name == kDeviceMap || kTopics.contains(name); }

json run(const std::string& topic, const std::string& document) {
  if (topic == kDeviceMap) {
    return replay::replay_device_map(nlohmann::ordered_json::parse(document));
  }
  return kTopics.at(topic)(json::parse(document));
}

int usage() {
  std::cerr << "usage: accelerant-replay TOPIC [--lines] < document.json; topics:";
  for (const auto& [name, topic] : kTopics) std::cerr << ' ' << name;
  std::cerr << ' ' << kDeviceMap;
  std::cerr << '\n';
  return 2;
}

// A message without the line breaks that would break the protocol.
std::string one_line(std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  return message;
}

}  // namespace

int main(int argc, char** argv) {
  const bool lines = argc == 3 && std::string(argv[2]) == "--lines";
  if (argc < 2 || (argc != 2 && !lines)) return usage();
  const std::string topic = argv[1];
  if (!is_topic(topic)) return usage();

  if (lines) {
    for (std::string line; std::getline(std::cin, line);) {
      json result;
      try {
        result = run(topic, line);
      } catch (const std::exception& error) {
        result = {{"error", one_line(error.what())}};
      }
      // Messages may quote bytes of a file that are not UTF-8.
      std::cout << result.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
    return 0;
  }
  try {
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    std::cout << run(topic, text).dump() << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "accelerant-replay: " << one_line(error.what()) << '\n';
    return 2;
  }
}
