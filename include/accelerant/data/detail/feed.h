// Where a loop gets its batches: made by this process, or read by rank 0 for all processes (see
// dispatch.h). Part of the loader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "accelerant/data/detail/ordered_pipeline.h"
#include "accelerant/data/detail/source.h"
#include "accelerant/data/detail/transfer.h"

namespace accelerant::data::detail {

// Makes torch's operators that are called in this thread use no other threads.
void use_one_intra_op_thread();

struct Workers {
  int64_t threads = 0;
  int64_t prefetch = 1;  // batches that each worker prepares ahead
};

template <class Batch>
struct Arriving : Loaded<Batch> {
  std::shared_ptr<Arrival> arrival = {};
};

template <class Batch>
class Feed {
 public:
  virtual ~Feed() = default;
  // The next batch of this process; nullopt at the end. Waits for it.
  virtual std::optional<Arriving<Batch>> next() = 0;
};

// Batches made by this process.
template <class Batch>
class OwnFeed final : public Feed<Batch> {
 public:
  OwnFeed(Source<Batch>& source, const EpochRequest& request, const Transfer& transfer,
          const Workers& workers)
      : pipeline_(
            [&transfer, jobs = source.open(request),
             in_worker = workers.threads > 0]() -> std::function<Arriving<Batch>()> {
              auto job = jobs();
              if (!job) return {};
              return [&transfer, job = std::move(job), in_worker] {
                Arriving<Batch> item{job()};
                item.arrival = transfer.prepare(item.batch, in_worker);
                return item;
              };
            },
            workers.threads, workers.threads* workers.prefetch, use_one_intra_op_thread) {}

  std::optional<Arriving<Batch>> next() override { return pipeline_.next(); }

 private:
  OrderedPipeline<Arriving<Batch>> pipeline_;
};

}  // namespace accelerant::data::detail
