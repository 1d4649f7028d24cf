// Dividing values between processes, as Accelerate's split_between_processes does: in order, the
// first `length % num_processes` processes getting one more than the others. Without padding some
// may get nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace accelerant::dist {

// Part of a sequence: positions begin to end - 1, then the sequence's last element `padding` times.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t padding = 0;
};

// The part of process `rank` of `num_processes`. With padding all parts have the same length; an empty
// sequence has nothing to pad with and gives empty parts.
Part part_of(int64_t length, int64_t rank, int64_t num_processes, bool apply_padding);

// Along the first dimension.
at::Tensor split_between(const at::Tensor& values, int64_t rank, int64_t num_processes,
                         bool apply_padding = false);

template <class T>
std::vector<T> split_between(const std::vector<T>& values, int64_t rank, int64_t num_processes,
                             bool apply_padding = false) {
  const Part part =
      part_of(static_cast<int64_t>(values.size()), rank, num_processes, apply_padding);
  std::vector<T> result(values.begin() + part.begin, values.begin() + part.end);
  for (int64_t i = 0; i < part.padding; ++i) result.push_back(values.back());
  return result;
}

namespace detail {

inline int64_t length_of(const at::Tensor& values) { return values.size(0); }

template <class T>
int64_t length_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size());
}

// Throws Error: the values of a map have different lengths.
[[noreturn]] void refuse_lengths(int64_t first, int64_t other);

}  // namespace detail

// All values of a map must have the same length.
template <class Key, class T>
std::map<Key, T> split_between(const std::map<Key, T>& values, int64_t rank, int64_t num_processes,
                               bool apply_padding = false) {
  std::map<Key, T> result;
  for (const auto& [key, value] : values) {
    const int64_t first = detail::length_of(values.begin()->second);
    if (detail::length_of(value) != first) detail::refuse_lengths(first, detail::length_of(value));
    result.emplace(key, split_between(value, rank, num_processes, apply_padding));
  }
  return result;
}

}  // namespace accelerant::dist
