// One trace of the traces of several processes: `profile_<rank>.json` of accelerator.profile(), and
// `kernels_<rank>.json` of torch's profiler beside them. Times are brought together by the time of
// day, so processes of one machine fit to the microsecond, those of several as well as their clocks
// do.
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

// The traces in a folder, in the order of names. An Error if there are none.
std::vector<std::string> traces_in(const std::string& folder);

// Reads files of any size in little memory. Throws Error if one cannot be read or is no trace; then
// nothing is written.
MergedTrace merge_traces(const std::vector<std::string>& paths, const std::string& output);

}  // namespace accelerant::track
