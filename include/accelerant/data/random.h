// Random numbers that depend on nothing but (seed, epoch, index).
//
//   Sample get(int64_t index, accelerant::data::Random& random) {
//     return flip(image(index), random.uniform() < 0.5);
//   }
//
// The loader makes one Random for each sample, so an augmentation gives the same result in every
// worker thread, in every process and after a resume. All but normal() is the same bit for bit on
// every platform; normal() uses the logarithm and cosine of the C library.
//
// The generator is SplitMix64: a counter that is hashed. A Random is a small value and not
// thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

namespace at {
struct Generator;
}

namespace accelerant::data {

class Random {
 public:
  // A stream of numbers for one sample of one epoch. `repeat` counts from 0 how often a sampler has
  // given the same index before in the epoch, so that a sample drawn twice is not augmented alike.
  Random(uint64_t seed, int64_t epoch, int64_t index, int64_t repeat = 0);

  // A UniformRandomBitGenerator, for the standard library's algorithms and distributions (whose
  // results differ between standard libraries; the members below do not).
  using result_type = uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<uint64_t>::max(); }
  result_type operator()();

  // In [0, 1), from 53 random bits.
  double uniform();

  // In [low, high).
  double uniform(double low, double high);

  // From the normal distribution.
  double normal(double mean = 0.0, double standard_deviation = 1.0);

  // One of 0, 1, ..., n - 1, each with the same probability. Throws if n < 1.
  int64_t integer(int64_t n);

  // A torch generator on the CPU with a seed of this stream, made at the first call and then the
  // same one: `at::rand({3}, random.generator())`. Making it costs about 5 microseconds.
  at::Generator& generator();

 private:
  uint64_t counter_;
  std::shared_ptr<at::Generator> generator_;
};

}  // namespace accelerant::data
