// Reproducible random numbers.
//
//   accelerant::set_seed(42);
//   accelerant::set_seed(42, {.device_specific = true});  // other numbers in each process
#pragma once

#include <cstdint>
#include <optional>

namespace accelerant {

struct SetSeedOptions {
  // Add process_index to the seed, so that processes draw different numbers. By default all draw the
  // same, for example the same dropout masks.
  bool device_specific = false;

  // Make torch use deterministic algorithms from now on, and throw where an operator has none. It can
  // cost speed. false leaves the setting as it is.
  bool deterministic = false;

  // The number of this process, 0 or more. Only used if device_specific. Default: the one that the launcher
  // gave it (dist::Environment::detect), 0 where one process runs; as in Accelerate. There need be no
  // Accelerator yet.
  std::optional<int64_t> process_index = {};
};

// Seeds torch's default generators, on the CPU and on all devices. The numbers that torch draws are then
// those of Python's torch with the same seed. Generators of your own, and <random>, are not touched.
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

}  // namespace accelerant
