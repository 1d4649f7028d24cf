// Reads from stream data sets of all forms. Part of the loader.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/data/dataset.h"
#include "accelerant/data/detail/source.h"

namespace accelerant::data::detail {

// A stream of samples with next().
template <GivesNext D>
auto read_stream(D& dataset, int64_t count, int64_t position) {
  std::vector<typename OptionalValue<std::remove_cvref_t<decltype(dataset.next())>>::Type> samples;
  for (int64_t i = 0; i < count; ++i) {
    try {
      auto sample = dataset.next();
      if (!sample) break;
      samples.push_back(std::move(*sample));
    } catch (...) {
      rethrow_with_sample(position + i);
    }
  }
  return samples;
}

// A stream of torch::data: returns a vector of samples (possibly empty at the end) or a batch.
template <GivesNextBatch D>
auto read_stream(D& dataset, int64_t count, int64_t position) {
  using Result = std::remove_cvref_t<decltype(dataset.get_batch(std::size_t{}))>;
  using Value = typename OptionalValue<Result>::Type;
  using Read = std::conditional_t<is_vector<Value>, Value, std::optional<Value>>;
  try {
    Result result = dataset.get_batch(static_cast<std::size_t>(count));
    if constexpr (OptionalValue<Result>::is_optional) {
      return result ? Read(std::move(*result)) : Read();
    } else {
      return Read(std::move(result));
    }
  } catch (...) {
    rethrow_with_sample(position);
  }
}

template <class D>
constexpr bool gives_ready_batches() {
  if constexpr (requires { D::gives_batches; }) return D::gives_batches;
  return false;
}

// The result of one read: a vector of samples (for ready batches, with one element), or an optional
// batch.
template <class D>
using StreamRead = decltype(read_stream(std::declval<D&>(), int64_t{}, int64_t{}));

// The batch type of a stream that does not return samples.
template <class D>
using ReadyBatch = typename StreamRead<D>::value_type;

template <class D>
constexpr bool gives_samples_one_by_one = is_vector<StreamRead<D>> && !gives_ready_batches<D>();

}  // namespace accelerant::data::detail
