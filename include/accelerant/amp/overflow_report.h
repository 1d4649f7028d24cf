// Where an overflow came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerant {

struct OverflowedParameter {
  std::string name;  // as given to GradScaler::name_parameters, else "group 0 parameter 3"
  std::vector<int64_t> shape;  // empty if the parameter is gone
  int64_t inf_count = 0;       // elements of its gradient that were infinite after unscaling
  int64_t nan_count = 0;       // and those that were not a number
};

struct OverflowReport {
  // In the order in which the optimizers were unscaled and hold their parameters; empty when every
  // gradient was finite.
  std::vector<OverflowedParameter> parameters;

  // One line per parameter, for a log.
  std::string to_string() const;
};

}  // namespace accelerant
