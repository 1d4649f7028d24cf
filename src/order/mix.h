// Hashing of counters: the source of all randomness of data loading.
#pragma once

#include <cstdint>

namespace accelerant::data {

// The finaliser of SplitMix64: every bit of the result depends on every bit of x.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// The distance between the counters of a SplitMix64 stream.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// What a stream of random numbers is for; keeps streams of the same seed apart.
enum class Purpose : uint64_t { order = 1, sample = 2 };

// Where a stream's counter starts. Each part is hashed before the next is added, so nearby seeds,
// epochs and indices give unrelated streams.
constexpr uint64_t first_counter(Purpose purpose, uint64_t seed, int64_t epoch, int64_t index) {
  uint64_t state = mix(seed + kGolden);
  state = mix(state ^ (static_cast<uint64_t>(purpose) * kGolden));
  state = mix(state + static_cast<uint64_t>(epoch) * kGolden);
  return mix(state + static_cast<uint64_t>(index) * kGolden);
}

// A stream of 64-bit numbers.
class Stream {
 public:
  constexpr explicit Stream(uint64_t counter) : counter_(counter) {}

  constexpr uint64_t next() {
    counter_ += kGolden;
    return mix(counter_);
  }

  // One of 0, ..., n - 1 with equal probability; n > 0. Lemire's method: the high half of a
  // product, redrawn in the rare cases that would favour some results.
  constexpr uint64_t below(uint64_t n) {
    for (;;) {
      __extension__ const unsigned __int128 product = static_cast<unsigned __int128>(next()) * n;
      const auto low = static_cast<uint64_t>(product);
      if (low >= n || low >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
    }
  }

  constexpr uint64_t counter() const { return counter_; }

 private:
  uint64_t counter_;
};

}  // namespace accelerant::data
