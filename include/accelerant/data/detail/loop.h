// One loop over a loader, that is, one epoch from its start position to its end. Part of the
// loader.
//
// The Source returns jobs that make batches, in the order of the EpochPlan. An OrderedPipeline runs
// them in threads and returns the batches in order. Transfer copies each batch to the device on its
// own stream. The loop reports every batch to LoaderState, which tracks the progress of the epoch.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "accelerant/data/detail/dispatch.h"
#include "accelerant/data/detail/feed.h"
#include "accelerant/data/detail/loader_state.h"
#include "accelerant/data/detail/source.h"
#include "accelerant/data/detail/transfer.h"
#include "accelerant/tensor/nested.h"
#include "accelerant/track/timeline.h"

namespace accelerant::data::detail {

// Calls the hook and logs what it throws.
void call_at_end(const std::function<void(LoaderState&, bool)>& on_loop, LoaderState& state);

template <class Batch>
class Loop {
 public:
  Loop(std::shared_ptr<Source<Batch>> source, std::shared_ptr<LoaderState> state,
       const LoaderOptions& options, const Placement& placement)
      : source_(std::move(source)),
        state_(std::move(state)),
        transfer_(placement),
        on_loop_(placement.on_loop),
        on_batch_end_(placement.on_batch_end),
        timeline_(placement.timeline),
        looks_ahead_(state_->counts_as_it_goes() || transfer_.copies_ahead()) {
    state_->begin_loop();
    running_ = true;
    try {
      if (on_loop_) on_loop_(*state_, true);
      if (state_->is_skipped()) {
        end();
        return;
      }
      start(options, placement);
      if (looks_ahead_) ahead_ = fetch();
      deliver_next();
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

  // Makes the next batch the current one, or ends the loop.
  void advance() {
    if (!running_) return;
    if (on_batch_end_) on_batch_end_(*state_);
    deliver_next();
  }

 private:
  using Item = Arriving<Batch>;
  struct Fetched {
    std::optional<Item> item = {};
    std::exception_ptr error = {};
  };

  void deliver_next() {
    current_.reset();  // before the next one is made, so that its memory can be reused
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
    int64_t rows = 0;
    if constexpr (UnderstoodNesting<Batch>) {
      rows = ignorant_find_batch_size(current_->batch).value_or(0);
    }
    state_->deliver(current_->units, current_->samples, rows, nothing_ahead);
  }

  void start(const LoaderOptions& options, const Placement& placement) {
    const Workers workers{.threads = placement.workers.value_or(options.workers),
                          .prefetch = placement.prefetch.value_or(options.prefetch)};
    if (!state_->is_dispatched()) {
      feed_ = std::make_unique<OwnFeed<Batch>>(*source_, state_->request(workers.threads > 0),
                                               transfer_, workers);
    } else if constexpr (!Packable<Batch>) {
      refuse_to_dispatch();
    } else if (placement.rank == 0) {
      feed_ = std::make_unique<SendingFeed<Batch>>(
          *source_, [&] { return state_->request(workers.threads > 0); }, transfer_, workers,
          state_->line(), state_->loop_number(), placement.num_processes);
    } else {
      feed_ =
          std::make_unique<ReceivingFeed<Batch>>(transfer_, state_->line(), state_->loop_number());
    }
  }

  Timeline::Span span(Phase phase) const {
    if (timeline_) return timeline_->span(phase);
    return {};
  }

  Fetched fetch() {
    const auto waiting = span(Phase::data);
    try {
      std::optional<Item> item = feed_->next();
      if (item) {
        const auto sending = transfer_.leaves_host() ? span(Phase::transfer) : Timeline::Span();
        item->arrival = transfer_.send(item->batch, item->arrival);
      }
      return {std::move(item), nullptr};
    } catch (...) {
      return {std::nullopt, std::current_exception()};
    }
  }

  void end(bool failed = false) {
    if (!std::exchange(running_, false)) return;
    feed_.reset();
    current_.reset();
    ahead_ = {};
    state_->end_loop(failed);
    if (on_loop_) call_at_end(on_loop_, *state_);
  }

  std::shared_ptr<Source<Batch>> source_;
  std::shared_ptr<LoaderState> state_;
  Transfer transfer_;
  std::function<void(LoaderState&, bool)> on_loop_;
  std::function<void(LoaderState&)> on_batch_end_;
  std::shared_ptr<Timeline> timeline_;  // may be null
  const bool looks_ahead_;
  bool running_ = false;
  std::unique_ptr<Feed<Batch>> feed_;
  std::optional<Item> current_;
  Fetched ahead_;
};

}  // namespace accelerant::data::detail
