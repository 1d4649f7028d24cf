// What the values of a tensor are like.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "store/weight_file.h"

namespace accelerant::cli {

struct TensorStatistics {
  bool is_known = true;  // false for types that are not understood here; the rest is empty then

  // Of the finite values; null where there are none. Integers are exact.
  nlohmann::json min = nullptr;
  nlohmann::json max = nullptr;
  nlohmann::json mean = nullptr;

  std::uint64_t nan = 0;  // how many values are NaN
  std::uint64_t inf = 0;  // how many are infinite

  // The first values in row-major order. Those that JSON has no numbers for are "NaN", "Infinity"
  // and "-Infinity".
  nlohmann::json first = nlohmann::json::array();
};

// Of floating-point numbers of 16 bits and more, integers and booleans. Goes through the tensor in
// small pieces.
TensorStatistics statistics_of(const checkpoint::WeightFile& file,
                               const checkpoint::WeightTensor& tensor,
                               std::size_t first_values = 8);

}  // namespace accelerant::cli
