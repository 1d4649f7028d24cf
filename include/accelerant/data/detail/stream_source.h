// Stream data sets as a Source. Part of the loader.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerant/data/dataset.h"
#include "accelerant/data/detail/source.h"
#include "accelerant/data/detail/stream_reading.h"
#include "accelerant/data/detail/stream_rounds.h"

namespace accelerant::data::detail {

[[noreturn]] void throw_stream_in_use();

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

  SourceTraits traits() const override {
    return {.kind = gives_ready_batches<D>() ? SourceKind::batch_stream : SourceKind::stream,
            .size = size_of(*dataset_),
            .shards_itself = ShardsItself<D>,
            .read_by_one_process = ReadByOneProcess<D>};
  }

  std::function<Job()> open(const EpochRequest& request) override {
    std::shared_ptr<void> lease = take();
    if constexpr (requires { dataset_->reset(request.epoch); }) {
      dataset_->reset(request.epoch);
    } else if constexpr (requires { dataset_->reset(); }) {
      dataset_->reset();
    }
    if constexpr (ShardsItself<D>) {
      if (request.sharding.num_processes > 1 && !request.for_all_ranks) {
        return open_own_part(request, lease);
      }
    }
    return jobs_of(request, lease);
  }

 private:
  using Rounds = std::conditional_t<gives_samples_one_by_one<D>, SampleRounds<D, Collate, Batch>,
                                    BatchRounds<D, Collate, Batch>>;

  // Reserves the stream for one loop, as long as the result lives.
  std::shared_ptr<void> take() {
    if (in_use_.exchange(true)) throw_stream_in_use();
    return std::shared_ptr<void>(
        this, [](void* self) { static_cast<StreamSource*>(self)->in_use_.store(false); });
  }

  std::function<Job()> jobs_of(const EpochRequest& request, std::shared_ptr<void> lease) {
    return [lease = std::move(lease), rounds = std::make_shared<Rounds>(
                                          dataset_, collate_, request)] { return rounds->next(); };
  }

  // If the data set shards itself, this process sees only its own part. It assumes that the other
  // processes are equally far.
  std::function<Job()> open_own_part(const EpochRequest& request, std::shared_ptr<void> lease) {
    const int64_t processes = request.sharding.num_processes;
    const int64_t rank = request.sharding.rank;
    dataset_->shard(rank, processes);
    EpochRequest alone = request;
    alone.start /= processes;
    if (alone.sharding.split_batches) alone.sharding.batch_size /= processes;
    alone.sharding.num_processes = 1;
    alone.sharding.rank = 0;
    alone.sharding.split_batches = alone.sharding.even_batches = false;
    return [jobs = jobs_of(alone, std::move(lease)), processes, rank]() -> Job {
      Job job = jobs();
      if (!job) return {};
      return [job = std::move(job), processes, rank] {
        Loaded<Batch> loaded = job();
        loaded.units *= processes;
        loaded.samples *= processes;
        loaded.rank = rank;
        return loaded;
      };
    };
  }

  std::shared_ptr<D> dataset_;
  Collate collate_;
  std::atomic<bool> in_use_ = false;
};

}  // namespace accelerant::data::detail
