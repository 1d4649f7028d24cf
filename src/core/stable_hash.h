// A hash that is the same in every process, build and machine, unlike std::hash.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerant {

// FNV-1a with 64 bits.
constexpr uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 14695981039346656037U;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  }
  return hash;
}

}  // namespace accelerant
