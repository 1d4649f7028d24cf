// Checks of the options and states of a loader. Each throws Error with a readable message.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "accelerant/data/detail/loader_state.h"
#include "accelerant/data/detail/placement.h"
#include "accelerant/data/loader_options.h"

namespace accelerant::data {

void check_options(const LoaderOptions& options, const Placement& placement,
                   const SourceTraits& traits);
// Throws unless rank 0 has what it needs to read for all.
void check_channel(const Placement& placement);

// A sampler must return size() indices, all of them in the data set.
void check_order_length(const std::vector<int64_t>& order, int64_t size);
void check_order(const std::vector<int64_t>& order, int64_t dataset_length);

struct LoaderPosition {
  uint64_t seed;
  int64_t epoch;
  int64_t position;
};

// Reads a state written by state_dict().
LoaderPosition read_state(const nlohmann::json& state, std::optional<int64_t> dataset_length);
// A data set that shards itself has different parts with a different number of processes.
void check_same_parts(const nlohmann::json& state, const LoaderPosition& loaded,
                      int64_t num_processes);

}  // namespace accelerant::data
