// Which bytes of a tensor make up a slice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerant/format/safetensors.h"

namespace accelerant::format {

// A slice consists of runs of bytes of equal length.
struct SlicePlan {
  // Runs along one dimension: `count` of them, `stride` bytes apart.
  struct Loop {
    std::uint64_t count;
    std::uint64_t stride;
  };

  std::vector<std::int64_t> shape = {};  // of the result
  std::uint64_t bytes = 0;               // of the result
  std::uint64_t first = 0;               // where the first run begins in the tensor
  std::uint64_t run = 0;                 // the length of a run
  std::vector<Loop> loops = {};          // from the outermost

  // Calls f with the beginning of each run, in order.
  void for_each_run(const std::function<void(std::uint64_t begin)>& f) const;
};

// Throws Error, whose message begins with `prefix`, for ranges outside the tensor.
SlicePlan plan_slice(const TensorInfo& tensor, std::span<const DimRange> ranges,
                     const std::string& prefix);

}  // namespace accelerant::format
