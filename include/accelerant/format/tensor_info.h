// What the header of a safetensors file says about a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "accelerant/format/dtype.h"

namespace accelerant::format {

// The free text of a file, its entry "__metadata__".
using Metadata = std::map<std::string, std::string>;

// The largest header a file may have, in bytes.
inline constexpr std::uint64_t largest_header = 100'000'000;

// The most dimensions a tensor may have.
inline constexpr std::size_t largest_rank = 64;

struct TensorInfo {
  std::string name = {};                 // any UTF-8 text: never take it for a path
  DType dtype = DType::f32;              // of an element
  std::vector<std::int64_t> shape = {};  // row-major; empty for a scalar
  std::uint64_t begin = 0;               // of its bytes, counted from the end of the header
  std::uint64_t end = 0;                 // one past the last

  std::uint64_t bytes() const { return end - begin; }

  bool operator==(const TensorInfo&) const = default;
};

// A part of one dimension: the elements from `begin` up to, without, `end`.
struct DimRange {
  static constexpr std::int64_t to_the_end = std::numeric_limits<std::int64_t>::max();

  std::int64_t begin = 0;         // from 0 to the size of the dimension
  std::int64_t end = to_the_end;  // from `begin` to the size of the dimension, or to_the_end
};

}  // namespace accelerant::format
