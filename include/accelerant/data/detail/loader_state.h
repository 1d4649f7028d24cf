// The progress of a loader: epoch, position, what is left. It does not depend on the type of the
// batches, so that accumulation, metrics and checkpoints can hold it.
//
//   std::shared_ptr<LoaderState> state = loader.state();
//   if (state->is_last_batch()) flush();
//
// Shared by the Loader, its copies and everyone who called state(). Not thread-safe: use it from
// the thread that runs the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "accelerant/data/detail/placement.h"
#include "accelerant/data/loader_options.h"
#include "accelerant/order/detail/epoch_plan.h"

namespace accelerant::data {

namespace detail {
struct EpochRequest;
template <class Batch>
class Loop;
}  // namespace detail

class BatchLine;

// Samples read by index; a stream of samples; a stream of ready batches.
enum class SourceKind { indexed, stream, batch_stream };

// What the loader needs to know about a data set. See dataset.h.
struct SourceTraits {
  SourceKind kind = SourceKind::indexed;
  std::optional<int64_t> size = {};  // samples, or ready batches; unknown for most streams
  bool shards_itself = false;
  bool read_by_one_process = false;
};

class LoaderState {
 public:
  LoaderState(const LoaderOptions& options, const Placement& placement, const SourceTraits& traits);

  // Takes over epoch, position and seed of another state, but not its placement.
  void start_like(const LoaderState& other);

  // --- The batch that is being processed ---

  // Whether a loop is running.
  bool is_active() const { return active_; }
  // Whether the current batch is the last of the epoch. False outside a loop.
  bool is_last_batch() const { return active_ && last_; }
  // Batches left to process, including the current one; outside a loop, the number that the next
  // loop will deliver. nullopt if unknown (streams without a size).
  std::optional<int64_t> batches_left() const;
  // Samples in the current batch over all processes, without padding. 0 outside a loop.
  int64_t current_samples() const { return active_ ? current_samples_ : 0; }
  // Rows of this process's current batch, including padding. 0 outside a loop, and if unknown (a
  // stream whose batches hold no tensors).
  int64_t current_rows() const;
  // How many rows of the current batches of all processes, concatenated by rank, are samples; the
  // rest is padding. 0: all of them; also outside a loop.
  int64_t rows_to_keep() const { return shards_itself_ ? 0 : current_samples(); }
  // Whether every process has a batch in this step. False at the end of an uneven epoch
  // (even_batches off), as far as is known.
  bool all_have_batch() const;

  // --- The epoch ---

  // Samples of the last batch over all processes; 0 if it is full. For streams without a size, and
  // for ready batches, 0 until the last batch has arrived.
  int64_t remainder() const;
  // The exact number of batches that this process gets in a whole epoch. nullopt for streams
  // without a size, and for streams that shard themselves.
  std::optional<int64_t> length() const;
  // The epoch of the running loop, or of the next one.
  int64_t epoch() const { return active_ ? current_epoch_ : next_epoch_; }
  // The next loop starts this epoch from its beginning. Inside a loop, applies to the one after it.
  void set_epoch(int64_t epoch);
  // Samples of the epoch, over all processes, that have been delivered, including the current batch
  // but not batches made ahead. Streams of ready batches count batches.
  int64_t position() const;
  // The next loop, and only that one, skips its first n batches (of each process). Free of cost,
  // except for streams that cannot skip.
  void skip_first_batches(int64_t n);
  // The next loop delivers no batches, as if it had already run: the loop after it continues with
  // the epoch that would have been next.
  void skip_loop() { next_is_skipped_ = true; }
  // Whether the running loop, or the last one, was skipped that way.
  bool is_skipped() const { return skipped_; }

  // --- Saving and resuming ---

  // Seed, epoch and position, and the length of the data set for a check.
  nlohmann::json state_dict() const;
  // The next loop continues from there, also with a different number of processes or batch size.
  // Throws if the state belongs to a data set of a different length.
  void load_state_dict(const nlohmann::json& state);

  // --- Properties ---

  // Samples that all processes take in one step; 0 if that varies (batch sampler, ready batches).
  int64_t total_batch_size() const { return total_batch_size_; }
  // Samples in the data set, if known.
  std::optional<int64_t> dataset_length() const { return dataset_length_; }
  // The seed of orders and samples. The default seed is read at first use.
  uint64_t seed() const;
  // Batches that are not full are left out.
  bool drops_last() const { return options_.drop_last; }
  bool is_stream() const { return kind_ != SourceKind::indexed; }
  // Whether rank 0 reads for all processes.
  bool is_dispatched() const { return dispatched_; }

 private:
  template <class Batch>
  friend class detail::Loop;

  // A loop begins. Throws if one is already running.
  void begin_loop();
  // The request to the source. If rank 0 reads for all, it requests the batches of all.
  detail::EpochRequest request(bool parallel);
  // A batch is delivered. `units` and `samples` are the positions and samples of its step over all
  // processes, for loops without a plan. `rows`: rows of this process, 0 if unknown.
  void deliver(int64_t units, int64_t samples, int64_t rows, bool nothing_ahead);
  void end_loop(bool failed);

  // Whether progress is only known from the batches themselves, so that one must be fetched ahead.
  bool counts_as_it_goes() const { return is_stream() || dispatched_; }
  // The line to the other processes, and the number of this loop on it.
  std::shared_ptr<BatchLine> line();
  int64_t loop_number() const { return loops_; }

  EpochPlan make_plan(int64_t epoch, int64_t start) const;
  // nullopt if the length is unknown.
  std::optional<Sharding> make_sharding(int64_t epoch, int64_t start) const;
  // Positions in a full step; 0 if that varies.
  int64_t full_step() const;
  // Where the next loop starts, including skipped batches.
  int64_t next_position() const;

  LoaderOptions options_;
  ShardingOptions sharding_;
  SourceKind kind_;
  bool shards_itself_;  // and not read by rank 0; several processes
  bool dispatched_;
  std::shared_ptr<BatchChannel> channel_;
  int64_t channel_line_;
  std::shared_ptr<BatchLine> line_;
  int64_t loops_ = 0;  // begun so far
  bool may_repeat_;    // the order may contain an index more than once
  std::optional<int64_t> dataset_length_;
  int64_t total_batch_size_;
  mutable std::optional<uint64_t> seed_;

  // The next loop. `decided_`: it was set inside the running loop.
  int64_t next_epoch_ = 0;
  int64_t next_start_ = 0;
  int64_t next_skip_ = 0;
  bool decided_ = false;
  bool next_is_skipped_ = false;

  // The running loop.
  bool active_ = false;
  bool last_ = false;
  bool skipped_ = false;
  int64_t current_epoch_ = 0;
  int64_t current_samples_ = 0;
  int64_t current_rows_ = 0;
  int64_t current_units_ = 0;  // positions in the current step, if there is no plan
  int64_t delivered_ = 0;
  int64_t start_ = 0;
  int64_t position_ = 0;
  std::optional<Sharding> shares_;  // of the running loop; nullopt if its length is unknown
  std::optional<EpochPlan> plan_;   // if this process reads by index
};

// The part of Loader<Batch> that does not depend on the type of the batch: its state, which all
// copies of the handle share, and functions that forward to it.
class LoaderHandle {
 public:
  // An empty handle. Assign to it before use; using it is an Error.
  LoaderHandle() = default;
  explicit LoaderHandle(std::shared_ptr<LoaderState> state);

  const std::shared_ptr<LoaderState>& state() const {
    if (!state_) refuse_empty();
    return state_;
  }

  bool is_last_batch() const { return state()->is_last_batch(); }
  std::optional<int64_t> batches_left() const { return state()->batches_left(); }
  int64_t current_samples() const { return state()->current_samples(); }
  int64_t remainder() const { return state()->remainder(); }
  std::optional<int64_t> length() const { return state()->length(); }
  int64_t epoch() const { return state()->epoch(); }
  void set_epoch(int64_t epoch) const { state()->set_epoch(epoch); }
  int64_t position() const { return state()->position(); }
  void skip_first_batches(int64_t n) const { state()->skip_first_batches(n); }
  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state) const;
  int64_t total_batch_size() const { return state()->total_batch_size(); }
  std::optional<int64_t> dataset_length() const { return state()->dataset_length(); }
  uint64_t seed() const { return state()->seed(); }

 private:
  [[noreturn]] static void refuse_empty();

  std::shared_ptr<LoaderState> state_;
};

}  // namespace accelerant::data
