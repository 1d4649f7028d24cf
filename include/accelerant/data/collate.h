// Combines samples into a batch.
//
//   collate(samples)   // std::vector<std::tuple<Tensor, int>> -> std::tuple<Tensor, Tensor>
//
// Tensors are stacked along a new first dimension. Numbers become a tensor with one dimension:
// integers int64, float float32, double float64, bool bool. Strings become a vector of strings.
// Tuples, pairs, arrays, vectors, optionals and maps are collated element by element, and must have
// the same elements in every sample. torch::data::Example is collated field by field. A struct that
// names its fields (see tensor/nested.h) becomes the same struct with each field collated, so its
// fields must be of types that collate to themselves: tensors, and containers of tensors.
//
// Any other type needs your own collate function, the third argument of data::loader. Worker
// threads call it concurrently.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerant/data/detail/torch_data.h"
#include "accelerant/tensor/detail/children.h"

namespace accelerant::data {

namespace detail {

// The parts of the work that need no template. `indices` name the samples in errors.
at::Tensor collate_tensors(std::span<const at::Tensor> tensors, std::span<const int64_t> indices);
at::Tensor collate_integers(std::span<const int64_t> values);
at::Tensor collate_floats(std::span<const float> values);
at::Tensor collate_doubles(std::span<const double> values);
at::Tensor collate_bools(std::span<const int64_t> values);
// Throws the Error for two samples that differ.
[[noreturn]] void throw_samples_differ(const std::string& what, int64_t first_index,
                                       const std::string& first, int64_t other_index,
                                       const std::string& other);

using Indices = std::span<const int64_t>;

template <class T>
struct Collate {
  static constexpr bool known = false;
};

template <class T>
concept Collatable = Collate<T>::known;

template <class T>
using Collated = typename Collate<T>::Result;

template <class T>
Collated<T> collate_all(const std::vector<T>& samples, Indices indices) {
  if constexpr (std::same_as<T, bool>) {  // a span cannot view a vector<bool>
    return collate_bools(std::vector<int64_t>(samples.begin(), samples.end()));
  } else {
    return Collate<T>::run(std::span<const T>(samples), indices);
  }
}

// Collates part(sample) over all samples.
template <class Part, class Sample, class F>
Collated<Part> collate_part(std::span<const Sample> samples, Indices indices, F&& part) {
  std::vector<Part> parts;
  parts.reserve(samples.size());
  for (const Sample& sample : samples) parts.push_back(part(sample));
  return collate_all(parts, indices);
}

template <>
struct Collate<at::Tensor> {
  static constexpr bool known = true;
  using Result = at::Tensor;
  static Result run(std::span<const at::Tensor> samples, Indices indices) {
    return collate_tensors(samples, indices);
  }
};

template <class T>
requires(std::is_arithmetic_v<T> && !std::same_as<T, bool>) struct Collate<T> {
  static constexpr bool known = true;
  using Result = at::Tensor;
  static Result run(std::span<const T> samples, Indices) {
    if constexpr (std::same_as<T, float>) {
      return collate_floats(samples);
    } else if constexpr (std::floating_point<T>) {
      return collate_doubles(std::vector<double>(samples.begin(), samples.end()));
    } else {
      return collate_integers(std::vector<int64_t>(samples.begin(), samples.end()));
    }
  }
};

template <>
struct Collate<bool> {
  static constexpr bool known = true;
  using Result = at::Tensor;
};

template <>
struct Collate<std::string> {
  static constexpr bool known = true;
  using Result = std::vector<std::string>;
  static Result run(std::span<const std::string> samples, Indices) {
    return {samples.begin(), samples.end()};
  }
};

template <Collatable... Ts>
struct Collate<std::tuple<Ts...>> {
  static constexpr bool known = true;
  using Sample = std::tuple<Ts...>;
  using Result = std::tuple<Collated<Ts>...>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Result{collate_part<Ts>(samples, indices,
                                     [](const Sample& sample) { return std::get<i>(sample); })...};
    }
    (std::index_sequence_for<Ts...>());
  }
};

template <Collatable A, Collatable B>
struct Collate<std::pair<A, B>> {
  static constexpr bool known = true;
  using Sample = std::pair<A, B>;
  using Result = std::pair<Collated<A>, Collated<B>>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    return {collate_part<A>(samples, indices, [](const Sample& sample) { return sample.first; }),
            collate_part<B>(samples, indices, [](const Sample& sample) { return sample.second; })};
  }
};

template <Collatable T, std::size_t n>
struct Collate<std::array<T, n>> {
  static constexpr bool known = true;
  using Sample = std::array<T, n>;
  using Result = std::array<Collated<T>, n>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    Result result;
    for (std::size_t i = 0; i < n; ++i) {
      result[i] =
          collate_part<T>(samples, indices, [i](const Sample& sample) { return sample[i]; });
    }
    return result;
  }
};

template <Collatable T>
struct Collate<std::vector<T>> {
  static constexpr bool known = true;
  using Sample = std::vector<T>;
  using Result = std::vector<Collated<T>>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    for (std::size_t i = 1; i < samples.size(); ++i) {
      if (samples[i].size() != samples[0].size()) {
        throw_samples_differ("the same number of elements in every sample", indices[0],
                             std::to_string(samples[0].size()), indices[i],
                             std::to_string(samples[i].size()));
      }
    }
    Result result;
    for (std::size_t i = 0; i < samples[0].size(); ++i) {
      result.push_back(
          collate_part<T>(samples, indices, [i](const Sample& sample) -> T { return sample[i]; }));
    }
    return result;
  }
};

template <Collatable T>
struct Collate<std::optional<T>> {
  static constexpr bool known = true;
  using Sample = std::optional<T>;
  using Result = std::optional<Collated<T>>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    const auto word = [](const Sample& sample) { return sample ? "a value" : "none"; };
    for (std::size_t i = 1; i < samples.size(); ++i) {
      if (samples[i].has_value() != samples[0].has_value()) {
        throw_samples_differ("an optional value in all samples or in none", indices[0],
                             word(samples[0]), indices[i], word(samples[i]));
      }
    }
    if (!samples[0]) return std::nullopt;
    return collate_part<T>(samples, indices, [](const Sample& sample) { return *sample; });
  }
};

template <class Map, class Result_>
struct CollateMap {
  static constexpr bool known = true;
  using Value = typename Map::mapped_type;
  using Result = Result_;
  static Result run(std::span<const Map> samples, Indices indices) {
    Result result;
    for (std::size_t i = 1; i < samples.size(); ++i) {
      bool same = samples[i].size() == samples[0].size();
      for (const auto& [key, value] : samples[0]) same = same && samples[i].count(key) == 1;
      if (!same) {
        throw_samples_differ("the same keys in every sample", indices[0],
                             std::to_string(samples[0].size()) + " keys", indices[i],
                             std::to_string(samples[i].size()) + " keys, which differ");
      }
    }
    for (const auto& entry : samples[0]) {
      result.emplace(entry.first,
                     collate_part<Value>(samples, indices, [&entry](const Map& sample) {
                       return sample.at(entry.first);
                     }));
    }
    return result;
  }
};

template <class K, Collatable V>
struct Collate<std::map<K, V>> : CollateMap<std::map<K, V>, std::map<K, Collated<V>>> {};

template <class K, Collatable V>
struct Collate<std::unordered_map<K, V>>
    : CollateMap<std::unordered_map<K, V>, std::unordered_map<K, Collated<V>>> {};

template <Collatable Data, Collatable Target>
struct Collate<torch::data::Example<Data, Target>> {
  static constexpr bool known = true;
  using Sample = torch::data::Example<Data, Target>;
  using Result = torch::data::Example<Collated<Data>, Collated<Target>>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    return {
        collate_part<Data>(samples, indices, [](const Sample& sample) { return sample.data; }),
        collate_part<Target>(samples, indices, [](const Sample& sample) { return sample.target; })};
  }
};

template <Collatable Data>
struct Collate<torch::data::Example<Data, void>> {
  static constexpr bool known = true;
  using Sample = torch::data::Example<Data, void>;
  using Result = torch::data::Example<Collated<Data>, void>;
  static Result run(std::span<const Sample> samples, Indices indices) {
    return {collate_part<Data>(samples, indices, [](const Sample& sample) { return sample.data; })};
  }
};

template <class T>
concept CollatesToItself = std::same_as<typename Collate<T>::Result, T>;

template <accelerant::detail::HasFields T>
struct Collate<T> {
  static constexpr bool known = true;
  using Result = T;
  static Result run(std::span<const T> samples, Indices indices) {
    T result = samples[0];
    int place = 0;
    NestedFields<T>::visit(result, [&]<class Field>(Field& field) {
      static_assert(CollatesToItself<Field>,
                    "a batch of structs has the same struct type, so each field that "
                    "visit_fields names must be a tensor or a container of tensors: turn numbers "
                    "into tensors, or give data::loader your own collate function");
      field = collate_part<Field>(samples, indices, [&](const T& sample) {
        Field value{};
        int i = 0;
        NestedFields<T>::visit(sample, [&]<class Other>(const Other& other) {
          if constexpr (std::same_as<Other, Field>) {
            if (i == place) value = other;
          }
          ++i;
        });
        return value;
      });
      ++place;
    });
    return result;
  }
};

}  // namespace detail

// A sample type that collate() supports.
template <class Sample>
concept Collatable = detail::Collatable<Sample>;

// The type of a batch of such samples.
template <Collatable Sample>
using Collated = detail::Collated<Sample>;

// Combines the samples, at least one, into a batch. `indices`, one per sample, name the samples in
// errors; without them, errors count from 0.
template <Collatable Sample>
Collated<Sample> collate(const std::vector<Sample>& samples, std::span<const int64_t> indices) {
  return detail::collate_all(samples, indices);
}

template <Collatable Sample>
Collated<Sample> collate(const std::vector<Sample>& samples) {
  std::vector<int64_t> indices(samples.size());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
  return collate(samples, indices);
}

}  // namespace accelerant::data
