// How much longer than usual tests may take on this machine.
#pragma once

#include <algorithm>
#include <cstdlib>

// ACCELERANT_TEST_TIMEOUT_SCALE, but at least 1.
inline double timeout_scale() {
  const char* const scale = std::getenv("ACCELERANT_TEST_TIMEOUT_SCALE");
  return scale == nullptr ? 1 : std::max(1., std::atof(scale));
}
