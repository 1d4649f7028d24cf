// Which streams of which ranks: the values of --tee and --redirect.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "accelerant/launch/debug_launcher.h"

namespace accelerant::launch {

class StreamMask {
 public:
  StreamMask() = default;

  // "0" none, "1" standard output, "2" standard error, "3" both, for all ranks, or "0:3,1:1" by
  // local rank; ranks that are not named have none. `option` names the option in errors.
  StreamMask(const std::string& text, const std::string& option, int64_t local_world_size);

  static StreamMask all();

  bool has(int64_t local_rank, Stream stream) const;

 private:
  int for_all_ = 0;
  std::map<int64_t, int> by_rank_ = {};
};

}  // namespace accelerant::launch
