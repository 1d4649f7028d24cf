// One loop over a loader: an epoch, from where it starts to where it ends. A part of the loader.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "accelerant/data/loader_state.h"
#include "accelerant/data/ordered_pipeline.h"
#include "accelerant/data/source.h"
#include "accelerant/data/transfer.h"

namespace accelerant::data::detail {

// Calls the hook; what it throws is logged.
void call_at_end(const std::function<void(LoaderState&, bool)>& on_loop, LoaderState& state);
// Makes torch's operators in this thread run in this thread.
void use_one_intra_op_thread();

template <class Batch>
class Loop {
 public:
  Loop(std::shared_ptr<Source<Batch>> source, std::shared_ptr<LoaderState> state,
       const LoaderOptions& options, const Placement& placement)
      : source_(std::move(source)),
        state_(std::move(state)),
        transfer_(placement),
        on_loop_(placement.on_loop),
        looks_ahead_(state_->is_stream() || transfer_.copies_ahead()) {
    state_->begin_loop();
    running_ = true;
    try {
      if (on_loop_) on_loop_(*state_, true);
      start(options, placement);
      if (looks_ahead_) ahead_ = fetch();
      advance();
    } catch (...) {
      end(/*failed=*/true);
      throw;
    }
  }

  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() { end(); }

  bool is_over() const { return !running_; }
  Batch& batch() { return current_->batch; }

  // The next batch becomes the current one, or the loop ends.
  void advance() {
    if (!running_) return;
    current_.reset();  // before the next is made, so that its memory can be used again
    Fetched fetched = looks_ahead_ ? std::exchange(ahead_, {}) : fetch();
    if (fetched.error) {
      end(/*failed=*/true);
      std::rethrow_exception(fetched.error);
    }
    if (!fetched.item) return end();
    current_ = std::move(fetched.item);
    if (looks_ahead_) ahead_ = fetch();
    transfer_.receive(current_->batch, current_->arrival.get());
    const bool nothing_ahead = !ahead_.item && !ahead_.error;
    state_->deliver(current_->units, current_->samples, nothing_ahead);
  }

 private:
  struct Item : Loaded<Batch> {
    std::shared_ptr<Arrival> arrival = {};
  };
  struct Fetched {
    std::optional<Item> item = {};
    std::exception_ptr error = {};
  };

  void start(const LoaderOptions& options, const Placement& placement) {
    const int64_t workers = placement.workers.value_or(options.workers);
    const int64_t prefetch = placement.prefetch.value_or(options.prefetch);
    EpochRequest request{.start = state_->stream_start(),
                         .batch_size = options.batch_size,
                         .drop_last = options.drop_last,
                         .seed = state_->seed(),
                         .epoch = state_->epoch(),
                         .parallel = workers > 0};
    if (!state_->is_stream()) request.plan = state_->plan();
    auto claim = [this, jobs = source_->open(request),
                  in_worker = workers > 0]() -> std::function<Item()> {
      auto job = jobs();
      if (!job) return {};
      return [this, job = std::move(job), in_worker] {
        Item item{job()};
        item.arrival = transfer_.prepare(item.batch, in_worker);
        return item;
      };
    };
    pipeline_.emplace(std::move(claim), workers, workers * prefetch, use_one_intra_op_thread);
  }

  Fetched fetch() {
    try {
      std::optional<Item> item = pipeline_->next();
      if (item) item->arrival = transfer_.send(item->batch, item->arrival);
      return {std::move(item), nullptr};
    } catch (...) {
      return {std::nullopt, std::current_exception()};
    }
  }

  void end(bool failed = false) {
    if (!std::exchange(running_, false)) return;
    pipeline_.reset();
    current_.reset();
    ahead_ = {};
    state_->end_loop(failed);
    if (on_loop_) call_at_end(on_loop_, *state_);
  }

  std::shared_ptr<Source<Batch>> source_;
  std::shared_ptr<LoaderState> state_;
  Transfer transfer_;
  std::function<void(LoaderState&, bool)> on_loop_;
  const bool looks_ahead_;
  bool running_ = false;
  std::optional<OrderedPipeline<Item>> pipeline_;
  std::optional<Item> current_;
  Fetched ahead_;
};

}  // namespace accelerant::data::detail
