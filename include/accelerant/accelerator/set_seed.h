// Reproducible random numbers.
//
//   accelerant::set_seed(42);
//   accelerant::set_seed(42, {.device_specific = true, .process_index = rank});
#pragma once

#include <cstdint>

namespace accelerant {

struct SetSeedOptions {
  // Add process_index to the seed, so that processes draw different numbers. By default all draw the
  // same, for example the same dropout masks.
  bool device_specific = false;

  // Make torch use deterministic algorithms from now on, and throw where an operator has none. It can
  // cost speed. false leaves the setting as it is.
  bool deterministic = false;

  // The number of this process, 0 or more.
  int64_t process_index = 0;
};

// Seeds torch's default generators, on the CPU and on all devices. The numbers that torch draws are then
// those of Python's torch with the same seed. Generators of your own, and <random>, are not touched.
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

}  // namespace accelerant
