#include "accelerant/order/detail/sharding.h"

#include <algorithm>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

void require(bool fine, const char* problem, const char* expected, int64_t got) {
  if (fine) return;
  throw Error(ErrorDetails{.problem = problem, .expected = expected, .got = std::to_string(got)});
}

void check(const ShardingOptions& options) {
  require(options.num_processes >= 1, "The number of processes is too small", "at least 1",
          options.num_processes);
  require(options.rank >= 0 && options.rank < options.num_processes, "The rank is out of range",
          "0 <= rank < num_processes", options.rank);
}

int64_t divide_up(int64_t value, int64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace

// Cutting a batch of b * P samples into P parts deals out the same samples as batches of b in turn,
// so one rule is enough: batch number step * P + rank, of `size_` samples.
Sharding::Sharding(int64_t length, const ShardingOptions& options, int64_t start)
    : options_(options), varying_(false), length_(length), start_(start) {
  check(options);
  const int64_t processes = options.num_processes;
  require(options.batch_size >= 1, "The batch size is too small", "at least 1", options.batch_size);
  require(length >= 0, "A data set cannot have a negative length", "at least 0", length);
  require(start >= 0 && start <= length, "The position is outside the epoch",
          "0 <= position <= length", start);
  if (options.split_batches && options.batch_size % processes != 0) {
    throw Error(ErrorDetails{
        .problem = "A batch cannot be split evenly between the processes",
        .expected =
            "a batch_size that is a multiple of num_processes, because split_batches is set",
        .got = "batch_size " + std::to_string(options.batch_size) + " and " +
               std::to_string(processes) + " processes"});
  }
  size_ = options.split_batches ? options.batch_size / processes : options.batch_size;
  const int64_t left = length - start;
  const int64_t round = size_ * processes;
  batches_ = divide_up(left, size_);
  steps_ = count_steps();
  remainder_ = options.drop_last ? 0 : left % round;
}

Sharding::Sharding(const std::vector<int64_t>& batch_lengths, const ShardingOptions& options,
                   int64_t start)
    : options_(options), varying_(true) {
  check(options);
  if (options.split_batches) {
    throw Error(ErrorDetails{.problem = "Batches of a batch sampler cannot be split",
                             .expected = "split_batches = false",
                             .got = "true",
                             .hint = "splitting a batch requires a fixed batch_size"});
  }
  ends_.reserve(batch_lengths.size());
  for (const int64_t batch_length : batch_lengths) {
    require(batch_length >= 1, "A batch sampler made an empty batch", "at least 1 index",
            batch_length);
    length_ += batch_length;
    ends_.push_back(length_);
  }
  const auto end_before = std::lower_bound(ends_.begin(), ends_.end(), start);
  if (start < 0 || (start > 0 && (end_before == ends_.end() || *end_before != start))) {
    throw Error(ErrorDetails{.problem = "The batch sampler makes different batches than before",
                             .expected = "a position at the beginning of a batch",
                             .got = std::to_string(start),
                             .hint = "an epoch can only be resumed with the same batches"});
  }
  start_ = start == 0 ? 0 : end_before - ends_.begin() + 1;
  const int64_t processes = options.num_processes;
  batches_ = static_cast<int64_t>(ends_.size()) - start_;
  steps_ = count_steps();
  const int64_t in_last_round = batches_ % processes;
  if (!options.drop_last && in_last_round > 0) {
    remainder_ = length_ - begin_of(start_ + batches_ - in_last_round);
  }
}

int64_t Sharding::count_steps() const {
  const int64_t processes = options_.num_processes;
  if (options_.drop_last) {
    const int64_t full = varying_ ? batches_ : (length_ - start_) / size_;
    return full / processes;
  }
  if (options_.even_batches) return divide_up(batches_, processes);
  return divide_up(std::max<int64_t>(batches_ - options_.rank, 0), processes);
}

Sharding Sharding::for_rank(int64_t rank) const {
  Sharding other = *this;
  other.options_.rank = rank;
  check(other.options_);
  other.steps_ = other.count_steps();
  return other;
}

// Where batch number `batch` begins, for batches of given lengths; the end of the epoch for the one
// after the last.
int64_t Sharding::begin_of(int64_t batch) const {
  return batch == 0 ? 0 : ends_[static_cast<std::size_t>(batch) - 1];
}

std::vector<int64_t> Sharding::positions(int64_t step) const {
  require(step >= 0 && step < steps_, "The step is out of range", "0 <= step < steps()", step);
  const int64_t batch = step * options_.num_processes + options_.rank;
  int64_t begin = 0;
  int64_t end = 0;
  if (varying_) {
    // Batches missing from the last round are taken from the beginning of the epoch.
    const auto all = static_cast<int64_t>(ends_.size());
    const int64_t number = (start_ + batch) % all;
    begin = begin_of(number);
    end = begin_of(number + 1);
  } else {
    begin = start_ + batch * size_;
    end = begin + size_;
    if (!options_.even_batches) end = std::min(end, length_);
  }
  std::vector<int64_t> result(static_cast<std::size_t>(end - begin));
  for (int64_t& position : result) position = begin++ % length_;
  return result;
}

int64_t Sharding::position_before(int64_t step) const {
  step = std::min(step, batches_);  // clamp to the end
  if (!varying_) return std::min(length_, start_ + step * size_ * options_.num_processes);
  const auto all = static_cast<int64_t>(ends_.size());
  return begin_of(std::min(all, start_ + step * options_.num_processes));
}

}  // namespace accelerant::data
