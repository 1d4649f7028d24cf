#include "accelerant/order/sampler.h"

#include <cmath>
#include <numbers>
#include <string>

#include "accelerant/core/error.h"
#include "order/mix.h"

namespace accelerant::data {

Random::Random(uint64_t seed, int64_t epoch, int64_t index, int64_t repeat)
    : counter_(first_counter(Purpose::sample, seed, epoch, index)) {
  if (repeat != 0) counter_ = mix(counter_ ^ mix(static_cast<uint64_t>(repeat) * kGolden));
}

Random::result_type Random::operator()() {
  counter_ += kGolden;
  return mix(counter_);
}

double Random::uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }

double Random::uniform(double low, double high) { return low + (high - low) * uniform(); }

double Random::normal(double mean, double standard_deviation) {
  // Box-Muller. 1 - u is never 0, so the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return mean + standard_deviation * (radius * std::cos(2.0 * std::numbers::pi * uniform()));
}

int64_t Random::integer(int64_t n) {
  if (n < 1) {
    throw Error(ErrorDetails{.problem = "Random::integer needs a positive n",
                             .expected = "n >= 1",
                             .got = std::to_string(n)});
  }
  Stream stream(counter_);
  const uint64_t result = stream.below(static_cast<uint64_t>(n));
  counter_ = stream.counter();
  return static_cast<int64_t>(result);
}

}  // namespace accelerant::data
