// Stream data sets as the loader sees them. A part of the loader.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/data/dataset.h"
#include "accelerant/data/source.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::data::detail {

[[noreturn]] void throw_stream_in_use();
int64_t rows_of_first_tensor(const at::Tensor& tensor);

// A stream of samples: next() of our own form.
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

// A stream of torch::data: a vector of samples (which may be empty at the end) or a batch.
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

template <class D, class Collate>
auto stream_batch(D& dataset, const Collate& collate_function) {
  auto read = read_stream(dataset, 1, 0);
  if constexpr (gives_ready_batches<D>() && std::same_as<Collate, DefaultCollate>) {
    return std::move(read[0]);
  } else if constexpr (gives_ready_batches<D>()) {
    return std::invoke(collate_function, std::move(read[0]));
  } else if constexpr (is_vector<decltype(read)>) {
    return make_batch(collate_function, std::move(read), Indices());
  } else if constexpr (std::same_as<Collate, DefaultCollate>) {
    return std::move(*read);
  } else {
    return std::invoke(collate_function, std::move(*read));
  }
}

template <class D, class Collate>
using StreamBatch = decltype(stream_batch(std::declval<D&>(), std::declval<const Collate&>()));

template <class D, class Collate>
class StreamSource : public Source<StreamBatch<D, Collate>> {
 public:
  using Batch = StreamBatch<D, Collate>;
  using Job = typename Source<Batch>::Job;

  StreamSource(std::shared_ptr<D> dataset, Collate collate_function)
      : dataset_(std::move(dataset)), collate_(std::move(collate_function)) {}

  SourceKind kind() const override {
    return gives_ready_batches<D>() ? SourceKind::batch_stream : SourceKind::stream;
  }
  std::optional<int64_t> size() const override { return size_of(*dataset_); }

  std::function<Job()> open(const EpochRequest& request) override {
    std::shared_ptr<void> lease = take();
    if constexpr (requires { dataset_->reset(request.epoch); }) {
      dataset_->reset(request.epoch);
    } else if constexpr (requires { dataset_->reset(); }) {
      dataset_->reset();
    }
    // Torch streams know their size but not how to end.
    const std::optional<int64_t> end = GivesNextBatch<D> ? size() : std::nullopt;
    return [this, lease, request, end, position = int64_t{0}, ended = false]() mutable -> Job {
      if (position == 0 && request.start > 0) position = pass_over(request.start, request);
      if (ended) return {};
      int64_t count = request.batch_size;
      if (end) count = std::min(count, *end - position);
      if (count < 1) return {};
      return claim(count, request, position, ended);
    };
  }

 private:
  // The stream for one loop; whoever holds it.
  std::shared_ptr<void> take() {
    if (in_use_.exchange(true)) throw_stream_in_use();
    return std::shared_ptr<void>(
        this, [](void* self) { static_cast<StreamSource*>(self)->in_use_.store(false); });
  }

  int64_t pass_over(int64_t count, const EpochRequest& request) {
    if constexpr (requires { dataset_->skip(count); }) {
      dataset_->skip(count);
    } else {
      for (int64_t done = 0; done < count;) {
        const int64_t part = std::min(count - done, request.batch_size);
        const auto read = read_stream(*dataset_, part, done);
        if (is_at_end(read)) break;
        done += part;
      }
    }
    return count;
  }

  template <class Read>
  static bool is_at_end(const Read& read) {
    if constexpr (is_vector<Read>) {
      return read.empty();
    } else {
      return !read.has_value();
    }
  }

  Job claim(int64_t count, const EpochRequest& request, int64_t& position, bool& ended) {
    auto read = read_stream(*dataset_, count, position);
    if (is_at_end(read)) {
      ended = true;
      return {};
    }
    const int64_t first = position;
    if constexpr (is_vector<decltype(read)>) {
      const auto size = static_cast<int64_t>(read.size());
      position += size;
      if (size < request.batch_size) {
        ended = true;
        if (request.drop_last) return {};
      }
      return [this, first, size, samples = std::make_shared<decltype(read)>(std::move(read))] {
        return finish(std::move(*samples), first, size);
      };
    } else {
      position += count;
      return [this, first, count, batch = std::make_shared<decltype(read)>(std::move(read))] {
        return finish_batch(std::move(**batch), first, count);
      };
    }
  }

  template <class Samples>
  Loaded<Batch> finish(Samples&& samples, int64_t first, int64_t size) const {
    if constexpr (gives_ready_batches<D>()) {
      return finish_batch(std::move(samples[0]), first, 1);
    } else {
      std::vector<int64_t> indices(static_cast<std::size_t>(size));
      for (int64_t i = 0; i < size; ++i) indices[static_cast<std::size_t>(i)] = first + i;
      try {
        return {make_batch(collate_, std::move(samples), indices), size, size};
      } catch (...) {
        rethrow_with_samples(indices);
      }
    }
  }

  template <class Ready>
  Loaded<Batch> finish_batch(Ready&& ready, int64_t first, int64_t units) const {
    try {
      Loaded<Batch> loaded = [&]() -> Loaded<Batch> {
        if constexpr (std::same_as<Collate, DefaultCollate>) {
          return {std::forward<Ready>(ready)};
        } else {
          return {std::invoke(collate_, std::forward<Ready>(ready))};
        }
      }();
      loaded.units = units;
      loaded.samples = units;
      bool found = false;
      visit_tensors(loaded.batch, [&](const at::Tensor& tensor) {
        if (!std::exchange(found, true)) loaded.samples = rows_of_first_tensor(tensor);
      });
      return loaded;
    } catch (...) {
      rethrow_with_sample(first);
    }
  }

  std::shared_ptr<D> dataset_;
  Collate collate_;
  std::atomic<bool> in_use_ = false;
};

}  // namespace accelerant::data::detail
