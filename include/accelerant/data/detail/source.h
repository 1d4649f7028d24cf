// The loader's view of a data set of any type: it opens an epoch and returns jobs, each of which
// makes a batch. Part of the loader; see dataset.h for data sets, and stream_source.h for streams.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/data/collate.h"
#include "accelerant/data/dataset.h"
#include "accelerant/data/detail/loader_state.h"
#include "accelerant/order/detail/epoch_plan.h"
#include "accelerant/order/sampler.h"

namespace accelerant::data::detail {

// Turn the current exception into an Error that names the sample or samples and nests the original.
// An Error about samples stays unchanged.
[[noreturn]] void rethrow_with_sample(int64_t index);
[[noreturn]] void rethrow_with_samples(std::span<const int64_t> indices);

template <class Batch>
struct Loaded {
  Batch batch;
  int64_t units = 0;    // positions that all processes take in this step
  int64_t samples = 0;  // samples in it, of all processes
  int64_t rank = 0;     // rank of the process it is for
  int64_t step = 0;     // counted from the start of the loop
};

struct EpochRequest {
  std::optional<EpochPlan> plan = {};  // indexed data sets
  ShardingOptions sharding = {};
  int64_t start = 0;  // streams: positions to skip
  uint64_t seed = 0;
  int64_t epoch = 0;
  bool parallel = false;       // jobs run in several threads
  bool for_all_ranks = false;  // the batches of all processes, step by step in the order of ranks
};

template <class Batch>
class Source {
 public:
  using Job = std::function<Loaded<Batch>()>;

  virtual ~Source() = default;
  virtual SourceTraits traits() const = 0;
  // Returns a function that gives the jobs of an epoch in order, and an empty job at the end. It
  // must not outlive the source.
  virtual std::function<Job()> open(const EpochRequest& request) = 0;
};

// Makes a batch from samples, with the user's function or the rules of collate.h.
struct DefaultCollate {};

template <class Collate, class Sample>
auto make_batch(const Collate& collate_function, std::vector<Sample>&& samples, Indices indices) {
  if constexpr (std::same_as<Collate, DefaultCollate>) {
    static_assert(Collatable<Sample>,
                  "samples of this type cannot be collated into a batch (see data/collate.h); "
                  "give data::loader a collate function as its third argument, which takes a "
                  "std::vector of samples and returns the batch");
    return collate_all(samples, indices);
  } else {
    return std::invoke(collate_function, std::move(samples));
  }
}

// A data set shared by threads; see dataset.h.
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
  // A copy for one thread at a time. There are never more copies than threads.
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

// --- Data sets read by index ---------------------------------------------------------------------

// Whether samples are read one by one, because get_batch would only return a vector of them.
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

// The samples of a batch, and what their random numbers depend on.
struct BatchRequest {
  std::vector<int64_t> indices = {};
  std::vector<int64_t> repeats = {};  // see EpochPlan
  uint64_t seed = 0;
  int64_t epoch = 0;

  Random random(std::size_t i) const {
    return Random(seed, epoch, indices[i], repeats.empty() ? 0 : repeats[i]);
  }
};

template <class D, class Collate>
auto load_batch(D& dataset, const Collate& collate_function, const BatchRequest& request) {
  const std::vector<int64_t>& indices = request.indices;
  if constexpr (asked_by_get<D>()) {
    using Sample = decltype(get_sample(dataset, int64_t{}, std::declval<Random&>()));
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      try {
        Random random = request.random(i);
        samples.push_back(get_sample(dataset, indices[i], random));
      } catch (...) {
        rethrow_with_sample(indices[i]);
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
using IndexedBatch =
    decltype(load_batch(std::declval<std::conditional_t<const_is_enough<D>(), const D, D>&>(),
                        std::declval<const Collate&>(), std::declval<const BatchRequest&>()));

template <class D, class Collate>
class IndexedSource : public Source<IndexedBatch<D, Collate>> {
 public:
  using Batch = IndexedBatch<D, Collate>;
  using Job = typename Source<Batch>::Job;

  IndexedSource(std::shared_ptr<D> dataset, bool may_copy, Collate collate_function)
      : dataset_(std::move(dataset), may_copy), collate_(std::move(collate_function)) {}

  SourceTraits traits() const override {
    return {.kind = SourceKind::indexed, .size = size_of(dataset_.prototype())};
  }

  std::function<Job()> open(const EpochRequest& request) override {
    std::vector<EpochPlan> plans;
    if (request.for_all_ranks) {
      for (int64_t rank = 0; rank < request.sharding.num_processes; ++rank) {
        plans.push_back(request.plan->for_rank(rank));
      }
    } else {
      plans.push_back(*request.plan);
    }
    return [this, request, plans = std::move(plans), step = int64_t{0},
            place = std::size_t{0}]() mutable -> Job {
      if (place == plans.size() || plans[place].steps() <= step) {  // no higher rank has more
        place = 0;
        ++step;
      }
      if (plans[place].steps() <= step) return {};
      const EpochPlan& plan = plans[place];
      const int64_t rank = request.sharding.rank + static_cast<int64_t>(place);
      BatchRequest batch{plan.indices(step), plan.repeats(step), request.seed, request.epoch};
      ++place;
      return [this, batch = std::move(batch), parallel = request.parallel, step = step, rank,
              samples = plan.samples(step)] {
        return Loaded<Batch>{
            dataset_.use(parallel,
                         [&](auto& dataset) { return load_batch(dataset, collate_, batch); }),
            samples, samples, rank, step};
      };
    };
  }

 private:
  SharedDataset<D, const_is_enough<D>()> dataset_;
  Collate collate_;
};

}  // namespace accelerant::data::detail
