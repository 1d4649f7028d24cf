// Statistics of the values of a tensor.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "store/weight_file.h"

namespace accelerant::cli {

struct TensorStatistics {
  bool is_known = true;  // false for data types without statistics; the rest is empty then

  // Of the finite values; null if there are none. Integers are exact.
  nlohmann::json min = nullptr;
  nlohmann::json max = nullptr;
  nlohmann::json mean = nullptr;

  std::uint64_t nan = 0;  // how many values are NaN
  std::uint64_t inf = 0;  // how many are infinite

  // The first values in row-major order. JSON has no numbers for "NaN", "Infinity" and "-Infinity",
  // which are strings.
  nlohmann::json first = nlohmann::json::array();
};

// For floating-point types of 16 bits and more, integers and booleans. Reads the tensor in small
// pieces.
TensorStatistics statistics_of(const checkpoint::WeightFile& file,
                               const checkpoint::WeightTensor& tensor,
                               std::size_t first_values = 8);

}  // namespace accelerant::cli
