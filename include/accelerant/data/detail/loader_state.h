// Where a loader stands: epoch, position, what is left. The part of a loader that does not depend
// on the type of its batches, so that accumulation, metrics and checkpoints can hold it.
//
//   std::shared_ptr<LoaderState> state = loader.state();
//   if (state->is_last_batch()) flush();
//
// Shared by the Loader, its copies and whoever asked for it. Not thread-safe: to be used from the
// thread that runs the loop.
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

// Samples that are asked for by index; that come one after the other; batches that do.
enum class SourceKind { indexed, stream, batch_stream };

// What is to be known of a data set. See dataset.h.
struct SourceTraits {
  SourceKind kind = SourceKind::indexed;
  std::optional<int64_t> size = {};  // samples, or ready batches; unknown for most streams
  bool shards_itself = false;
  bool read_by_one_process = false;
};

class LoaderState {
 public:
  LoaderState(const LoaderOptions& options, const Placement& placement, const SourceTraits& traits);

  // Epoch, position and seed of another state, whatever its placement.
  void start_like(const LoaderState& other);

  // --- The batch that is being processed ---

  // Whether a loop is running.
  bool is_active() const { return active_; }
  // The current batch is the last of the epoch. False outside of a loop.
  bool is_last_batch() const { return active_ && last_; }
  // Batches still to be processed, the current one included; outside of a loop, how many the next
  // one will give. Nothing where it is not known (streams without a size).
  std::optional<int64_t> batches_left() const;
  // Samples in the current batch over all processes, those that only fill it up not counted. 0
  // outside of a loop.
  int64_t current_samples() const { return active_ ? current_samples_ : 0; }
  // Rows of this process's current batch, those that only fill it up included. 0 outside of a loop,
  // and where it cannot be told (a stream whose batches hold no tensors).
  int64_t current_rows() const;
  // How many rows of the current batches of all processes, one after the other, are samples; those
  // behind only fill up. 0: all of them, also outside of a loop.
  int64_t rows_to_keep() const { return shards_itself_ ? 0 : current_samples(); }
  // Whether every process has a batch in this step. False at the end of an epoch that is left
  // uneven (even_batches off), as far as that can be told.
  bool all_have_batch() const;

  // --- The epoch ---

  // Samples of the last batch over all processes; 0 if it is full. For streams without a size, and
  // of ready batches, 0 until the last batch has come.
  int64_t remainder() const;
  // Batches that this process gets in a whole epoch, exactly. Nothing for streams without a size,
  // and for those that shard themselves.
  std::optional<int64_t> length() const;
  // The epoch of the running loop, or of the next one.
  int64_t epoch() const { return active_ ? current_epoch_ : next_epoch_; }
  // The next loop is of this epoch, from its beginning. Inside of a loop: the one after it.
  void set_epoch(int64_t epoch);
  // Samples of the epoch, over all processes, that have been handed out; the current batch is one
  // of them, batches made ahead are not. Streams of ready batches count batches.
  int64_t position() const;
  // The next loop leaves out its first n batches (of each process); once. Costs nothing but for
  // streams that cannot skip.
  void skip_first_batches(int64_t n);
  // The next loop gives no batches, as if it had been run already: the one after it is of the epoch
  // that would have been next.
  void skip_loop() { next_is_skipped_ = true; }
  // The running loop, or the last one, is such a one.
  bool is_skipped() const { return skipped_; }

  // --- Saving and resuming ---

  // seed, epoch and position, and the length of the data set to check against.
  nlohmann::json state_dict() const;
  // The next loop goes on from there, also with another number of processes or another batch size.
  // Throws if the state is of a data set of another length.
  void load_state_dict(const nlohmann::json& state);

  // --- What the loader is ---

  // Samples that all processes take in one step; 0 if that varies (batch sampler, ready batches).
  int64_t total_batch_size() const { return total_batch_size_; }
  // Samples in the data set, if it can tell.
  std::optional<int64_t> dataset_length() const { return dataset_length_; }
  // The seed of orders and samples; the default one is read when it is first asked for.
  uint64_t seed() const;
  bool is_stream() const { return kind_ != SourceKind::indexed; }
  // Rank 0 reads for all processes.
  bool is_dispatched() const { return dispatched_; }

 private:
  template <class Batch>
  friend class detail::Loop;

  // A loop begins. Throws if one is running already.
  void begin_loop();
  // What the source is asked for. Rank 0 asks for all if it reads for all.
  detail::EpochRequest request(bool parallel);
  // A batch is handed out. It says how many positions and samples its step has, of all processes;
  // that is needed where it is not planned. `rows`: of this process, 0 if they cannot be told.
  void deliver(int64_t units, int64_t samples, int64_t rows, bool nothing_ahead);
  void end_loop(bool failed);

  // Batches themselves tell how far the loop is, so that one has to be looked at ahead.
  bool counts_as_it_goes() const { return is_stream() || dispatched_; }
  // The line to the other processes, and the number of this loop on it.
  std::shared_ptr<BatchLine> line();
  int64_t loop_number() const { return loops_; }

  EpochPlan make_plan(int64_t epoch, int64_t start) const;
  // Nothing if the length is not known.
  std::optional<Sharding> make_sharding(int64_t epoch, int64_t start) const;
  // Positions that a full step takes; 0 if that varies.
  int64_t full_step() const;
  // Where the next loop starts, skipped batches included.
  int64_t next_position() const;

  LoaderOptions options_;
  ShardingOptions sharding_;
  SourceKind kind_;
  bool shards_itself_;  // and has to
  bool dispatched_;
  std::shared_ptr<BatchChannel> channel_;
  int64_t channel_line_;
  std::shared_ptr<BatchLine> line_;
  int64_t loops_ = 0;  // begun so far
  bool may_repeat_;    // an order that may give an index more than once
  std::optional<int64_t> dataset_length_;
  int64_t total_batch_size_;
  mutable std::optional<uint64_t> seed_;

  // The next loop. `decided_` says that it was set inside of the running one.
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
  int64_t current_units_ = 0;  // positions that the current step took, where not planned
  int64_t delivered_ = 0;
  int64_t start_ = 0;
  int64_t position_ = 0;
  std::optional<Sharding> shares_;  // of the running loop; nothing if its length is not known
  std::optional<EpochPlan> plan_;   // if this process reads by index
};

// The part of Loader<Batch> that is the same for every type of batch: its state, shared by all
// copies of the handle, and the members of the state; see there.
class LoaderHandle {
 public:
  // An empty handle, to be assigned to. Using it is an Error.
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
