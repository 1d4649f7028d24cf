// Computes which samples each process delivers in each step.
//
//   const Sharding part(17, {.batch_size = 4, .num_processes = 3, .rank = 1});
//   for (int64_t step = 0; step < part.steps(); ++step) use(part.positions(step));
//
// Positions are places in the epoch's order (for a shuffled data set, the shuffled order). The
// rules are those of Accelerate's BatchSamplerShard: batches are dealt to the processes in turn, or
// each batch is cut into equal parts (`split_batches`). Either way, the parts of a step,
// concatenated by rank, are in the epoch's order. The last round is completed from the beginning of
// the order (`even_batches`), left uneven, or dropped (`drop_last`).
//
// A Sharding may start in the middle of an epoch. It then deals out the rest, however the first
// part was dealt out. This is how a run resumes with a different number of processes.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerant::data {

struct ShardingOptions {
  // Samples in a batch of one process or, with `split_batches`, of all together. Default: 1.
  int64_t batch_size = 1;
  // Drop the last round if it is incomplete. Default: false.
  bool drop_last = false;
  // The number of processes, and the rank of this one. Default: a single process.
  int64_t num_processes = 1;
  int64_t rank = 0;
  // Cut each batch into num_processes parts; batch_size must be a multiple of it. Default: false.
  bool split_batches = false;
  // Complete the last round from the beginning of the order. Default: true.
  bool even_batches = true;
};

class Sharding {
 public:
  // `length` samples in batches of options.batch_size, starting at position `start`.
  Sharding(int64_t length, const ShardingOptions& options, int64_t start = 0);

  // Batches of the given lengths, starting at position `start`, which must be the beginning of a
  // batch or the end. Ignores options.batch_size; split_batches is not supported.
  Sharding(const std::vector<int64_t>& batch_lengths, const ShardingOptions& options,
           int64_t start = 0);

  // The same epoch from the same start, for another process.
  Sharding for_rank(int64_t rank) const;

  // Number of steps of this process, each with one batch.
  int64_t steps() const { return steps_; }

  // The positions that this process delivers in a step, 0 <= step < steps().
  std::vector<int64_t> positions(int64_t step) const;

  // Samples of the epoch, over all processes, that are delivered before a step. A Sharding that
  // starts there deals out the rest, so this also serves to skip steps.
  int64_t position_before(int64_t step) const;

  // Samples of all processes in a step, not counting those that only complete it.
  int64_t samples(int64_t step) const { return position_before(step + 1) - position_before(step); }

  // Samples in the last step over all processes if it is incomplete, otherwise 0.
  int64_t remainder() const { return remainder_; }

 private:
  int64_t begin_of(int64_t batch) const;
  int64_t count_steps() const;

  ShardingOptions options_;
  bool varying_;
  int64_t length_ = 0;         // positions in the epoch
  int64_t start_ = 0;          // first position (varying: first batch) to deal out
  int64_t batches_ = 0;        // batches from the start on; with split_batches, parts of batches
  int64_t size_ = 0;           // positions in a batch of one process; 0 if varying
  std::vector<int64_t> ends_;  // varying: where each batch of the epoch ends
  int64_t steps_ = 0;
  int64_t remainder_ = 0;
};

}  // namespace accelerant::data
