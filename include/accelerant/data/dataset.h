// What a data set is, and two helpers to make one.
//
// A data set is any class with one of these forms. It need not derive from anything.
//
//   by index    size() and get(index), or get(index, Random&) to draw random numbers
//   by batch    size() and get_batch(indices): a std::vector of samples is collated, anything else
//               is the batch
//   as a stream next(), which returns a std::optional<Sample>; optionally reset(epoch) or reset(),
//               called when an epoch starts, skip(n), which skips n samples, and size()
//
// A stream that several processes share may offer more. Without these members, every process reads
// the whole stream and keeps its own part of each round of batches.
//
//   skip(n)                      also used to skip the samples of other processes, if it returns
//                                the number of samples skipped, or if size() is known
//   shard(rank, num_processes)   called after reset: from then on next() returns the samples of one
//                                process only. The data set decides which ones (files, for
//                                example). Each process reads its part to the end, so all parts
//                                should give the same number of batches
//   read_by_one_process          static constexpr bool, true: only one process can read it, or each
//                                process would read something different (a socket, unseeded random
//                                numbers). Rank 0 reads for all, unless dispatch_batches is false
//
// size() returns an integer, or a std::optional of one as in torch::data. `indices` is any type
// that can be made from a std::vector of int64_t or size_t: a span, an at::ArrayRef, the vector
// itself. If a data set has both get and get_batch, the loader calls get, unless get_batch returns
// ready batches. Data sets of torch::data work unchanged; see loader.h for loaders of torch::data.
//
// Ownership: data::loader copies a data set passed as an lvalue, moves an rvalue, and shares a
// std::shared_ptr. Copying a class that holds tensors does not copy their data.
//
// Worker threads: if get (or get_batch) is const, all workers call it concurrently, so const must
// mean thread-safe. Otherwise each worker has a copy, as in torch::data; a data set that is shared
// or cannot be copied is used by one worker at a time. Draw random numbers from the Random&
// argument. A data set that uses torch's global generator works, but its numbers then depend on
// which worker comes first.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/order/sampler.h"

namespace accelerant::data {

namespace detail {

template <class T>
struct OptionalValue {
  using Type = T;
  static constexpr bool is_optional = false;
};
template <class T>
struct OptionalValue<std::optional<T>> {
  using Type = T;
  static constexpr bool is_optional = true;
};

template <class T>
constexpr bool is_vector = false;
template <class T, class A>
constexpr bool is_vector<std::vector<T, A>> = true;

// Data sets read by index.
template <class D>
concept Gets = requires(D& dataset, int64_t index) {
  dataset.get(index);
};
template <class D>
concept GetsWithRandom = requires(D& dataset, int64_t index, Random& random) {
  dataset.get(index, random);
};

auto get_sample(GetsWithRandom auto& dataset, int64_t index, Random& random) {
  return dataset.get(index, random);
}
template <Gets D>
requires(!GetsWithRandom<D>) auto get_sample(D& dataset, int64_t index, Random&) {
  return dataset.get(index);
}

// Data sets read by a list of indices, of either type.
template <class D>
concept GetsBatch64 = requires(D& dataset, const std::vector<int64_t>& indices) {
  dataset.get_batch(indices);
};
template <class D>
concept GetsBatchSize = requires(D& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(indices);
};

template <GetsBatch64 D>
auto get_samples(D& dataset, const std::vector<int64_t>& indices) {
  return dataset.get_batch(indices);
}
template <GetsBatchSize D>
requires(!GetsBatch64<D>) auto get_samples(D& dataset, const std::vector<int64_t>& indices) {
  const std::vector<std::size_t> unsigned_indices(indices.begin(), indices.end());
  return dataset.get_batch(unsigned_indices);
}

// Data sets read one sample after the other.
template <class D>
concept GivesNext = requires(D& dataset) {
  requires OptionalValue<std::remove_cvref_t<decltype(dataset.next())>>::is_optional;
};
// A torch stream, which takes a number of samples. An ArrayRef can be made from a single number, so
// data sets that take indices must be excluded.
template <class D>
concept GivesNextBatch =
    !GetsBatch64<D> && !GetsBatchSize<D> && requires(D & dataset, std::size_t count) {
  dataset.get_batch(count);
};

template <class D>
concept AnyIndexed = Gets<D> || GetsWithRandom<D> || GetsBatch64<D> || GetsBatchSize<D>;
template <class D>
concept AnyStream = GivesNext<D> || GivesNextBatch<D>;

// Optional members of streams.
template <class D>
concept Skips = requires(D& dataset, int64_t n) {
  dataset.skip(n);
};
template <class D>
concept SkipsAndCounts = requires(D& dataset, int64_t n) {
  { dataset.skip(n) } -> std::integral;
};
template <class D>
concept ShardsItself = requires(D& dataset, int64_t rank, int64_t num_processes) {
  dataset.shard(rank, num_processes);
};
template <class D>
concept ReadByOneProcess = requires {
  requires D::read_by_one_process;
};

// size() as a number, if it exists and is known.
template <class D>
std::optional<int64_t> size_of(const D& dataset) {
  if constexpr (requires { dataset.size(); }) {
    if constexpr (OptionalValue<std::remove_cvref_t<decltype(dataset.size())>>::is_optional) {
      const auto size = dataset.size();
      return size ? std::optional(static_cast<int64_t>(*size)) : std::nullopt;
    } else {
      return static_cast<int64_t>(dataset.size());
    }
  } else {
    return std::nullopt;
  }
}

void check_same_length(std::span<const at::Tensor> tensors);
// Copies the rows of each tensor, in the order of the indices, into new tensors.
void select_rows(std::span<const at::Tensor> tensors, const std::vector<int64_t>& indices,
                 std::span<at::Tensor> rows);

}  // namespace detail

template <class D>
concept Dataset =
    detail::AnyIndexed<std::remove_cvref_t<D>> || detail::AnyStream<std::remove_cvref_t<D>>;

// --- tensors: rows of tensors as samples ---------------------------------------------------------

// The type returned by data::tensors.
template <class... Tensors>
class TensorDataset {
 public:
  using Sample = std::tuple<Tensors...>;

  explicit TensorDataset(const Tensors&... tensors) : tensors_{tensors...} {
    detail::check_same_length(tensors_);
  }

  int64_t size() const { return tensors_[0].size(0); }

  Sample get_batch(const std::vector<int64_t>& indices) const {
    std::array<at::Tensor, sizeof...(Tensors)> rows;
    detail::select_rows(tensors_, indices, rows);
    return as_tuple(std::move(rows));
  }

  // One row of each tensor.
  Sample get(int64_t index) const {
    std::array<at::Tensor, sizeof...(Tensors)> row;
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = tensors_[i].select(0, index).clone();
    return as_tuple(std::move(row));
  }

 private:
  static Sample as_tuple(std::array<at::Tensor, sizeof...(Tensors)>&& rows) {
    return std::apply([](auto&... row) { return Sample{std::move(row)...}; }, rows);
  }

  std::array<at::Tensor, sizeof...(Tensors)> tensors_;
};

// Sample i is row i of every tensor: tensors(images, labels). Batches are std::tuples of tensors.
// They are copies of the rows, on the device of the tensors, and never share memory with the data
// set. All tensors must have the same length in dimension 0.
template <std::same_as<at::Tensor>... Tensors>
requires(sizeof...(Tensors) > 0) TensorDataset<Tensors...> tensors(const Tensors&... all) {
  return TensorDataset<Tensors...>(all...);
}

// --- map: a function applied to every sample -----------------------------------------------------

namespace detail {

template <class D>
constexpr bool gives_samples = Gets<D> || GetsWithRandom<D>;

// Whether the data set and the function can be called through const.
template <class D, class F>
constexpr bool maps_const() {
  if constexpr (gives_samples<const D>) {
    using Sample =
        decltype(get_sample(std::declval<const D&>(), int64_t{}, std::declval<Random&>()));
    return std::invocable<const F&, Sample, Random&> || std::invocable<const F&, Sample>;
  } else {
    return false;
  }
}

}  // namespace detail

// The type returned by data::map.
template <class D, class F>
class MappedDataset {
 public:
  MappedDataset(D dataset, F function)
      : dataset_(std::move(dataset)), function_(std::move(function)) {}

  // Same as in the data set: its samples may be ready batches.
  static constexpr bool gives_batches = requires { requires D::gives_batches; };
  static constexpr bool read_by_one_process = detail::ReadByOneProcess<D>;

  std::optional<int64_t> size() const { return detail::size_of(dataset_); }

  // const, that is, thread-safe, if the data set and the function are.
  auto get(int64_t index, Random& random) const requires(detail::maps_const<D, F>()) {
    return apply(function_, detail::get_sample(dataset_, index, random), random);
  }
  auto get(int64_t index,
           Random& random) requires(detail::gives_samples<D> && !detail::maps_const<D, F>()) {
    return apply(function_, detail::get_sample(dataset_, index, random), random);
  }

  // A data set that only returns batches is mapped batch by batch.
  auto get_batch(const std::vector<int64_t>& indices) requires(
      (detail::GetsBatch64<D> || detail::GetsBatchSize<D>)&&!detail::gives_samples<D>) {
    return std::invoke(function_, detail::get_samples(dataset_, indices));
  }

  auto next() requires detail::GivesNext<D> {
    using Result = decltype(std::invoke(function_, *dataset_.next()));
    auto sample = dataset_.next();
    return sample ? std::optional<Result>(std::invoke(function_, std::move(*sample)))
                  : std::nullopt;
  }
  void reset(int64_t epoch) requires detail::GivesNext<D> {
    if constexpr (requires { dataset_.reset(epoch); }) {
      dataset_.reset(epoch);
    } else if constexpr (requires { dataset_.reset(); }) {
      dataset_.reset();
    }
  }
  auto skip(int64_t n) requires detail::Skips<D> { return dataset_.skip(n); }
  void shard(int64_t rank, int64_t num_processes) requires detail::ShardsItself<D> {
    dataset_.shard(rank, num_processes);
  }

 private:
  template <class Function, class Sample>
  static auto apply(Function& function, Sample&& sample, Random& random) {
    if constexpr (std::invocable<Function&, Sample, Random&>) {
      return std::invoke(function, std::forward<Sample>(sample), random);
    } else {
      return std::invoke(function, std::forward<Sample>(sample));
    }
  }

  D dataset_;
  F function_;
};

// A data set whose samples are f(sample) or f(sample, random). Copies or moves the data set.
template <Dataset D, class F>
auto map(D&& dataset, F&& function) {
  return MappedDataset<std::remove_cvref_t<D>, std::decay_t<F>>(std::forward<D>(dataset),
                                                                std::forward<F>(function));
}

}  // namespace accelerant::data
