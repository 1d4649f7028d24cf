#include "watch/heartbeat.h"

#include <nlohmann/json.hpp>

namespace accelerant::dist {

using nlohmann::json;

std::string to_json(const Heartbeat& heartbeat) {
  const ProgressSnapshot& progress = heartbeat.progress;
  const json text = {{"beat", heartbeat.beat},
                     {"state", static_cast<int>(heartbeat.state)},
                     {"message", heartbeat.message},
                     {"step", progress.step},
                     {"number", progress.number},
                     {"operation", progress.operation},
                     {"collective", progress.collective},
                     {"since", progress.since},
                     {"recent", progress.recent},
                     {"ordered", progress.ordered},
                     {"busy", progress.busy},
                     {"busy_steps", progress.busy_steps},
                     {"machine", heartbeat.whereabouts.machine},
                     {"pid", heartbeat.whereabouts.pid},
                     {"is_traced", heartbeat.whereabouts.is_traced}};
  // An error's message may hold anything.
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Heartbeat> heartbeat_of(std::string_view text) {
  try {
    const json parsed = json::parse(text);
    Heartbeat heartbeat;
    parsed.at("beat").get_to(heartbeat.beat);
    heartbeat.state = static_cast<ProcessState>(parsed.at("state").get<int>());
    parsed.at("message").get_to(heartbeat.message);
    ProgressSnapshot& progress = heartbeat.progress;
    parsed.at("step").get_to(progress.step);
    parsed.at("number").get_to(progress.number);
    parsed.at("operation").get_to(progress.operation);
    parsed.at("collective").get_to(progress.collective);
    parsed.at("since").get_to(progress.since);
    parsed.at("recent").get_to(progress.recent);
    parsed.at("ordered").get_to(progress.ordered);
    parsed.at("busy").get_to(progress.busy);
    parsed.at("busy_steps").get_to(progress.busy_steps);
    parsed.at("machine").get_to(heartbeat.whereabouts.machine);
    parsed.at("pid").get_to(heartbeat.whereabouts.pid);
    parsed.at("is_traced").get_to(heartbeat.whereabouts.is_traced);
    return heartbeat;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace accelerant::dist
