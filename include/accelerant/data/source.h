// The data set as the loader sees it, whatever its type: something that opens an epoch and gives
// one job after the other, each of which makes a batch. A part of the loader; see dataset.h for what
// data sets are.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/data/collate.h"
#include "accelerant/data/dataset.h"
#include "accelerant/data/epoch_plan.h"
#include "accelerant/data/loader_state.h"
#include "accelerant/data/random.h"

namespace accelerant::data::detail {

// Turn the exception under way into an Error that names the sample or the samples and keeps the
// original nested. An Error about samples stays as it is.
[[noreturn]] void rethrow_with_sample(int64_t index);
[[noreturn]] void rethrow_with_samples(std::span<const int64_t> indices);
[[noreturn]] void throw_stream_in_use();
int64_t rows_of_first_tensor(const at::Tensor& tensor);

template <class Batch>
struct Loaded {
  Batch batch;
  int64_t units = 0;    // positions of a stream that it took
  int64_t samples = 0;  // samples in it, for streams
};

struct EpochRequest {
  std::optional<EpochPlan> plan = {};  // indexed data sets
  int64_t start = 0;                   // streams: positions to pass over
  int64_t batch_size = 1;              // streams
  bool drop_last = false;              // streams
  uint64_t seed = 0;
  int64_t epoch = 0;
  bool parallel = false;  // jobs run in several threads
};

template <class Batch>
class Source {
 public:
  using Job = std::function<Loaded<Batch>()>;

  virtual ~Source() = default;
  virtual SourceKind kind() const = 0;
  virtual std::optional<int64_t> size() const = 0;
  // What gives the jobs of an epoch in order, and an empty one at the end. Must not outlive the
  // source.
  virtual std::function<Job()> open(const EpochRequest& request) = 0;
};

// The samples as one batch, by the user's function or by the rules of collate.h.
struct DefaultCollate {};

template <class Collate, class Sample>
auto make_batch(const Collate& collate_function, std::vector<Sample>&& samples, Indices indices) {
  if constexpr (std::same_as<Collate, DefaultCollate>) {
    static_assert(Collatable<Sample>,
                  "there is no rule how samples of this type become a batch (see data/collate.h); "
                  "give data::loader a collate function as its third argument, which takes a "
                  "std::vector of samples and returns the batch");
    return collate_all(samples, indices);
  } else {
    return std::invoke(collate_function, std::move(samples));
  }
}

// A data set and how threads share it; see dataset.h.
template <class D, bool const_is_enough>
class SharedDataset {
 public:
  SharedDataset(std::shared_ptr<D> dataset, bool may_copy)
      : dataset_(std::move(dataset)), may_copy_(may_copy) {}

  const D& prototype() const { return *dataset_; }

  template <class F>
  auto use(bool parallel, F&& f) {
    if constexpr (const_is_enough) {
      return f(std::as_const(*dataset_));
    } else {
      if (!parallel) return f(*dataset_);
      if constexpr (std::copy_constructible<D>) {
        if (may_copy_) {
          Lease lease(*this);
          return f(*lease.copy);
        }
      }
      const std::lock_guard lock(mutex_);
      return f(*dataset_);
    }
  }

 private:
  // A copy for one thread at a time; there are never more than threads.
  struct Lease {
    explicit Lease(SharedDataset& shared) : owner(shared) {
      const std::lock_guard lock(owner.mutex_);
      if (owner.copies_.empty()) {
        copy = std::make_unique<D>(std::as_const(*owner.dataset_));
      } else {
        copy = std::move(owner.copies_.back());
        owner.copies_.pop_back();
      }
    }
    ~Lease() {
      const std::lock_guard lock(owner.mutex_);
      owner.copies_.push_back(std::move(copy));
    }
    SharedDataset& owner;
    std::unique_ptr<D> copy;
  };

  std::shared_ptr<D> dataset_;
  bool may_copy_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<D>> copies_;
};

// --- Data sets that are asked by index ------------------------------------------------------------

// Whether samples are asked for one by one: where get_batch would only give a vector of the same.
template <class D>
constexpr bool asked_by_get() {
  if constexpr (!Gets<D> && !GetsWithRandom<D>) {
    return false;
  } else if constexpr (GetsBatch64<D> || GetsBatchSize<D>) {
    return is_vector<decltype(get_samples(std::declval<D&>(),
                                          std::declval<const std::vector<int64_t>&>()))>;
  } else {
    return true;
  }
}

template <class D>
constexpr bool const_is_enough() {
  if constexpr (asked_by_get<D>()) {
    return Gets<const D> || GetsWithRandom<const D>;
  } else {
    return GetsBatch64<const D> || GetsBatchSize<const D>;
  }
}

// What is known of the epoch where a batch is made.
struct EpochSeed {
  uint64_t seed;
  int64_t epoch;
};

template <class D, class Collate>
auto load_batch(D& dataset, const Collate& collate_function, const std::vector<int64_t>& indices,
                const EpochSeed& epoch) {
  if constexpr (asked_by_get<D>()) {
    using Sample = decltype(get_sample(dataset, int64_t{}, std::declval<Random&>()));
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (const int64_t index : indices) {
      try {
        Random random(epoch.seed, epoch.epoch, index);
        samples.push_back(get_sample(dataset, index, random));
      } catch (...) {
        rethrow_with_sample(index);
      }
    }
    try {
      return make_batch(collate_function, std::move(samples), indices);
    } catch (...) {
      rethrow_with_samples(indices);
    }
  } else {
    try {
      auto batch = get_samples(dataset, indices);
      if constexpr (is_vector<decltype(batch)>) {
        return make_batch(collate_function, std::move(batch), indices);
      } else if constexpr (std::same_as<Collate, DefaultCollate>) {
        return batch;
      } else {
        return std::invoke(collate_function, std::move(batch));
      }
    } catch (...) {
      rethrow_with_samples(indices);
    }
  }
}

template <class D, class Collate>
using IndexedBatch = decltype(load_batch(
    std::declval<std::conditional_t<const_is_enough<D>(), const D, D>&>(),
    std::declval<const Collate&>(), std::declval<const std::vector<int64_t>&>(), EpochSeed{}));

template <class D, class Collate>
class IndexedSource : public Source<IndexedBatch<D, Collate>> {
 public:
  using Batch = IndexedBatch<D, Collate>;
  using Job = typename Source<Batch>::Job;

  IndexedSource(std::shared_ptr<D> dataset, bool may_copy, Collate collate_function)
      : dataset_(std::move(dataset), may_copy), collate_(std::move(collate_function)) {}

  SourceKind kind() const override { return SourceKind::indexed; }
  std::optional<int64_t> size() const override { return size_of(dataset_.prototype()); }

  std::function<Job()> open(const EpochRequest& request) override {
    return [this, plan = *request.plan, epoch = EpochSeed{request.seed, request.epoch},
            parallel = request.parallel, step = int64_t{0}]() mutable -> Job {
      if (step == plan.steps()) return {};
      return [this, epoch, parallel, indices = plan.indices(step++)] {
        return Loaded<Batch>{dataset_.use(parallel, [&](auto& dataset) {
          return load_batch(dataset, collate_, indices, epoch);
        })};
      };
    };
  }

 private:
  SharedDataset<D, const_is_enough<D>()> dataset_;
  Collate collate_;
};

// --- Streams --------------------------------------------------------------------------------------

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
