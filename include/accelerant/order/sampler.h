// The order in which samples are visited.
//
//   auto options = LoaderOptions{.batch_size = 64,
//                                .sampler = std::make_shared<WeightedSampler>(weights, 10'000)};
//
// An order is a pure function of (seed, epoch): every process works it out by itself, a resumed
// run repeats it, and it is the same on every platform. A sampler of one's own keeps to that.
// Samplers are shared by the loaders that use them and are never changed.
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

// Gives the indices of an epoch, one by one; the loader groups them into batches.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // How many indices an epoch has; may be more or fewer than the data set has samples.
  virtual int64_t size() const = 0;

  // The indices of the epoch, exactly size() of them.
  virtual std::vector<int64_t> order(uint64_t seed, int64_t epoch) const = 0;
};

// Gives the indices of an epoch as ready batches, which may differ in size.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  // The batches of the epoch, none of them empty.
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
  // Draw each index anew, so that some come often and some never. Default: a permutation.
  bool replacement = false;
  // Indices in an epoch. Default: the length of the data set. More than that without replacement
  // means several permutations one after the other.
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

// Index i comes with a probability proportional to weights[i].
class WeightedSampler : public Sampler {
 public:
  // `weights`: finite, not negative, not all zero. `num_samples`: indices in an epoch. Without
  // replacement no index comes twice, so at most as many as there are positive weights.
  WeightedSampler(const std::vector<double>& weights, int64_t num_samples, bool replacement = true);
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  std::vector<uint64_t> weights_;  // as integers: sums are exact and so the same everywhere
  int64_t num_samples_;
  bool replacement_;
};

}  // namespace accelerant::data
