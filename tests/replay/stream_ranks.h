// The modes of the topic "sharding" that read streams.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace replay {

nlohmann::json stream_ranks_to(const nlohmann::json& document);

}  // namespace replay
