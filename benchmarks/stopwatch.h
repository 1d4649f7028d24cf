// Measures the time of a step over many steps in a row, with one wait for the device at the end of
// each lap, so that a step that waits for the device pays for it and one that does not wait can run
// ahead.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// Seconds per step, measured for about the given number of seconds: the median of at least three
// laps. The first steps only determine how many steps make a lap.
template <class Step, class Synchronize>
double seconds_per_step(double seconds, const Step& step, const Synchronize& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kTrial = 2, kLongest = 200, kLaps = 4;
  step();
  wait();
  auto start = Clock::now();
  for (int64_t i = 0; i < kTrial; ++i) step();
  wait();
  const double trial = std::max(seconds_since(start) / kTrial, 1e-7);
  const auto lap = std::clamp(static_cast<int64_t>(seconds / kLaps / trial), int64_t{1}, kLongest);
  std::vector<double> laps;
  const auto begin = Clock::now();
  while (laps.size() < 3 || seconds_since(begin) < seconds) {
    start = Clock::now();
    for (int64_t i = 0; i < lap; ++i) step();
    wait();
    laps.push_back(seconds_since(start) / static_cast<double>(lap));
  }
  return median(laps);
}
