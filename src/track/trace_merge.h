// Merges the traces of several processes into one: `profile_<rank>.json` of accelerator.profile(),
// and `kernels_<rank>.json` of torch's profiler next to them. They are aligned by the time of day: to
// the microsecond on one machine, on several as well as their clocks agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerant/track/timeline.h"

namespace accelerant::track {

struct RankTimes {
  int64_t rank = 0;
  int64_t dropped = 0;
  PhaseTimes times = {};
};

struct MergedTrace {
  int64_t files = 0;
  int64_t events = 0;
  std::vector<RankTimes> ranks = {};  // in their order
};

// The traces in a folder, sorted by name. Throws Error if there are none.
std::vector<std::string> traces_in(const std::string& folder);

// Reads files of any size in little memory. Throws Error, and writes nothing, if one cannot be read
// or is not a trace.
MergedTrace merge_traces(const std::vector<std::string>& paths, const std::string& output);

}  // namespace accelerant::track
