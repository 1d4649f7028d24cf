// The order in which samples are visited.
//
//   auto options = LoaderOptions{.batch_size = 64,
//                                .sampler = std::make_shared<WeightedSampler>(weights, 10'000)};
//
// An order is a pure function of (seed, epoch): every process computes it independently, a resumed
// run repeats it, and it is the same on every platform. Your own samplers must keep to this.
// Loaders share samplers and never change them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace at {
struct Generator;
}  // namespace at

namespace accelerant::data {

// Random numbers that depend only on (seed, epoch, index).
//
//   Sample get(int64_t index, accelerant::data::Random& random) {
//     return flip(image(index), random.uniform() < 0.5);
//   }
//
// The loader makes one Random for each sample, so an augmentation gives the same result in every
// worker thread, in every process and after a resume. All results except normal() are identical bit
// for bit on every platform; normal() uses the C library's logarithm and cosine.
//
// The generator is SplitMix64, a hashed counter. A Random is a small value and not thread-safe.
class Random {
 public:
  // The random numbers of one sample in one epoch. `repeat` counts, from 0, how often the sampler
  // has already returned the index in this epoch, so that a sample drawn twice is augmented
  // differently.
  Random(uint64_t seed, int64_t epoch, int64_t index, int64_t repeat = 0);

  // A UniformRandomBitGenerator for the standard library's algorithms and distributions. Their
  // results differ between standard libraries; those of the members below do not.
  using result_type = uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<uint64_t>::max(); }
  result_type operator()();

  // In [0, 1), from 53 random bits.
  double uniform();

  // In [low, high).
  double uniform(double low, double high);

  // Normally distributed.
  double normal(double mean = 0.0, double standard_deviation = 1.0);

  // Uniform in 0, 1, ..., n - 1. Throws if n < 1.
  int64_t integer(int64_t n);

  // A CPU generator of torch, seeded from this stream. Created at the first call (about 5
  // microseconds), then reused: `at::rand({3}, random.generator())`.
  at::Generator& generator();

 private:
  uint64_t counter_;
  std::shared_ptr<at::Generator> generator_;
};

// Produces the indices of an epoch; the loader groups them into batches.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Number of indices in an epoch; may differ from the number of samples in the data set.
  virtual int64_t size() const = 0;

  // The indices of the epoch, exactly size() of them.
  virtual std::vector<int64_t> order(uint64_t seed, int64_t epoch) const = 0;
};

// Produces the indices of an epoch as ready batches, which may differ in size.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  // The batches of the epoch. None of them may be empty.
  virtual std::vector<std::vector<int64_t>> batches(uint64_t seed, int64_t epoch) const = 0;
};

// 0, 1, ..., length - 1.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t length);
  int64_t size() const override { return length_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t length_;
};

struct RandomSamplerOptions {
  // Draw each index independently, so that some repeat and some never come. Default: a permutation.
  bool replacement = false;
  // Indices in an epoch. Default: the length of the data set. Without replacement, a larger number
  // gives several permutations one after the other.
  std::optional<int64_t> num_samples = {};
};

// A random order of 0, 1, ..., length - 1.
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(int64_t length, RandomSamplerOptions options = {});
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t length_;
  bool replacement_;
  int64_t num_samples_;
};

// Draws index i with a probability proportional to weights[i].
class WeightedSampler : public Sampler {
 public:
  // `weights`: finite, not negative, not all zero. `num_samples`: indices in an epoch. Without
  // replacement no index repeats, so it must not exceed the number of positive weights.
  WeightedSampler(const std::vector<double>& weights, int64_t num_samples, bool replacement = true);
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  std::vector<uint64_t> weights_;  // as integers, so that sums are exact on every platform
  int64_t num_samples_;
  bool replacement_;
};

}  // namespace accelerant::data
