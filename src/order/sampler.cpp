#include "accelerant/order/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "accelerant/core/error.h"
#include "order/mix.h"

namespace accelerant::data {
namespace {

void check_not_negative(const char* what, int64_t value) {
  if (value >= 0) return;
  throw Error(ErrorDetails{.problem = std::string("A sampler got a negative ") + what,
                           .expected = "0 or more",
                           .got = std::to_string(value)});
}

Stream order_stream(uint64_t seed, int64_t epoch) {
  return Stream(first_counter(Purpose::order, seed, epoch, 0));
}

// Fisher-Yates. Written out, because std::shuffle differs between standard libraries.
void shuffle(std::vector<int64_t>& values, Stream& stream) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[stream.below(left)]);
  }
}

std::vector<int64_t> counting(int64_t length) {
  std::vector<int64_t> values(static_cast<std::size_t>(length));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// Prefix sums of weights that can change: a Fenwick tree.
class WeightTree {
 public:
  explicit WeightTree(const std::vector<uint64_t>& weights) : sums_(weights.size() + 1) {
    for (std::size_t i = 1; i < sums_.size(); ++i) {
      sums_[i] += weights[i - 1];
      total_ += weights[i - 1];
      const std::size_t parent = i + (i & (0 - i));
      if (parent < sums_.size()) sums_[parent] += sums_[i];
    }
    while (2 * top_ < sums_.size()) top_ *= 2;
  }

  uint64_t total() const { return total_; }

  // The first index at which the sum of weights exceeds `target`.
  std::size_t find(uint64_t target) const {
    std::size_t place = 0;
    for (std::size_t step = top_; step > 0; step /= 2) {
      if (place + step < sums_.size() && sums_[place + step] <= target) {
        place += step;
        target -= sums_[place];
      }
    }
    return place;
  }

  void remove(std::size_t index, uint64_t weight) {
    total_ -= weight;
    for (std::size_t i = index + 1; i < sums_.size(); i += i & (0 - i)) sums_[i] -= weight;
  }

 private:
  std::vector<uint64_t> sums_;
  uint64_t total_ = 0;
  std::size_t top_ = 1;
};

}  // namespace

SequentialSampler::SequentialSampler(int64_t length) : length_(length) {
  check_not_negative("length", length);
}

std::vector<int64_t> SequentialSampler::order(uint64_t, int64_t) const { return counting(length_); }

RandomSampler::RandomSampler(int64_t length, RandomSamplerOptions options)
    : length_(length),
      replacement_(options.replacement),
      num_samples_(options.num_samples.value_or(length)) {
  check_not_negative("length", length);
  check_not_negative("num_samples", num_samples_);
  if (length == 0 && num_samples_ > 0) {
    throw Error(ErrorDetails{.problem = "RandomSampler cannot draw samples from an empty data set",
                             .expected = "num_samples = 0 or a length of 1 or more",
                             .got = "num_samples = " + std::to_string(num_samples_)});
  }
}

std::vector<int64_t> RandomSampler::order(uint64_t seed, int64_t epoch) const {
  Stream stream = order_stream(seed, epoch);
  const auto count = static_cast<std::size_t>(num_samples_);
  std::vector<int64_t> result;
  if (replacement_) {
    result.resize(count);
    for (int64_t& index : result) {
      index = static_cast<int64_t>(stream.below(static_cast<uint64_t>(length_)));
    }
    return result;
  }
  while (result.size() < count) {
    std::vector<int64_t> permutation = counting(length_);
    shuffle(permutation, stream);
    if (result.empty()) {
      result = std::move(permutation);
    } else {
      result.insert(result.end(), permutation.begin(), permutation.end());
    }
  }
  result.resize(count);
  return result;
}

WeightedSampler::WeightedSampler(const std::vector<double>& weights, int64_t num_samples,
                                 bool replacement)
    : weights_(weights.size()), num_samples_(num_samples), replacement_(replacement) {
  check_not_negative("num_samples", num_samples);
  double sum = 0;
  int64_t positive = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw Error(
          ErrorDetails{.problem = "WeightedSampler got an invalid weight",
                       .expected = "finite, non-negative weights",
                       .got = std::to_string(weights[i]) + " at index " + std::to_string(i)});
    }
    sum += weights[i];
    positive += weights[i] > 0 ? 1 : 0;
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    throw Error(ErrorDetails{.problem = "WeightedSampler got unusable weights",
                             .expected = "weights with a finite sum above 0",
                             .got = std::to_string(sum)});
  }
  if (!replacement && num_samples > positive) {
    throw Error(ErrorDetails{
        .problem = "WeightedSampler cannot draw that many samples without replacement",
        .expected = "at most " + std::to_string(positive) + ", the number of positive weights",
        .got = std::to_string(num_samples)});
  }
  // Integers that sum to about 2^62. A weight too small to count still counts as one.
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto scaled = static_cast<uint64_t>(std::ldexp(weights[i] / sum, 62));
    weights_[i] = weights[i] > 0 ? std::max<uint64_t>(scaled, 1) : 0;
  }
}

std::vector<int64_t> WeightedSampler::order(uint64_t seed, int64_t epoch) const {
  Stream stream = order_stream(seed, epoch);
  std::vector<int64_t> result(static_cast<std::size_t>(num_samples_));
  if (replacement_) {
    std::vector<uint64_t> ends(weights_.size());
    std::partial_sum(weights_.begin(), weights_.end(), ends.begin());
    for (int64_t& index : result) {
      index = std::upper_bound(ends.begin(), ends.end(), stream.below(ends.back())) - ends.begin();
    }
    return result;
  }
  WeightTree tree(weights_);
  for (int64_t& index : result) {
    const std::size_t found = tree.find(stream.below(tree.total()));
    tree.remove(found, weights_[found]);
    index = static_cast<int64_t>(found);
  }
  return result;
}

}  // namespace accelerant::data
