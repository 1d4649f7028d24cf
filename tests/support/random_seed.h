#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

/// The seed of a random test, new in every run; ACCELERANT_SEED repeats a failing one.
inline uint32_t random_seed() {
  const char* const given = std::getenv("ACCELERANT_SEED");
  const uint32_t seed = given != nullptr && *given != '\0'
                            ? static_cast<uint32_t>(std::stoull(given))
                            : std::random_device()();
  std::cout << "ACCELERANT_SEED=" << seed << '\n';
  return seed;
}
