// Divides a stream among processes, round by round. Part of the loader.
//
// A round is what all processes take in one step: their batches one after the other, in the order
// of the stream. Every process follows the whole stream and keeps its own part of each round. It
// skips the samples of other processes if the data set can do that; otherwise it reads and drops
// them. If one process reads for all, it keeps all parts.
//
// The last round is completed from the beginning of the stream (even_batches), so up to one round
// is kept for the whole epoch.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerant/data/dataset.h"
#include "accelerant/data/detail/source.h"
#include "accelerant/data/detail/stream_reading.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::data::detail {

// Throw the Errors of this file.
[[noreturn]] void refuse_to_complete_round(bool has_copies);
[[noreturn]] void refuse_long_read(int64_t asked, int64_t got);
// A copy with its own memory: the original is handed out and may be changed.
at::Tensor own_copy(const at::Tensor& tensor);
template <class T>
T own_copy_of(const T& value) {
  if constexpr (UnderstoodNesting<T>) {
    return map_tensors(value, [](const at::Tensor& tensor) { return own_copy(tensor); });
  } else {
    return value;
  }
}
int64_t rows_of_first_tensor(const at::Tensor& tensor);

// What rounds of samples and rounds of ready batches have in common.
template <class D, class Batch>
class RoundReader {
 public:
  using Job = typename Source<Batch>::Job;

  RoundReader(std::shared_ptr<D> dataset, const EpochRequest& request)
      : dataset_(std::move(dataset)),
        request_(request),
        processes_(request.sharding.num_processes),
        part_(request.sharding.split_batches ? request.sharding.batch_size / processes_
                                             : request.sharding.batch_size),
        size_(size_of(*dataset_)) {}
  virtual ~RoundReader() = default;

  // The next job; empty at the end.
  Job next() {
    if (!std::exchange(started_, true)) start();
    if (jobs_.empty() && !at_end_) read_round();
    if (jobs_.empty()) return {};
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

 protected:
  // Moves to where the loop starts, and keeps what may be needed to complete its last round.
  virtual void start() = 0;
  // Adds the jobs of one round.
  virtual void read_round() = 0;

  // Reads up to n more, fewer only at the end.
  auto read(int64_t n) {
    // Torch streams know their size but do not signal their end.
    if (GivesNextBatch<D> && size_) {
      at_end_ = at_end_ || position_ >= *size_;
      n = std::min(n, *size_ - position_);
    }
    using Read = StreamRead<D>;
    if (n < 1 || at_end_) return Read();
    Read result = read_stream(*dataset_, n, position_);
    const int64_t got = units_in(result, n);
    if (got > n && processes_ > 1) refuse_long_read(n, got);
    position_ += got;
    if (got < n) at_end_ = true;
    return result;
  }

  // Skips n samples or batches, and returns how many of them there were.
  int64_t pass_over(int64_t n) {
    const int64_t before = position_;
    if (at_end_ || n == 0) return 0;
    if constexpr (SkipsAndCounts<D>) {
      position_ += static_cast<int64_t>(dataset_->skip(n));
      at_end_ = position_ < before + n;
      return position_ - before;
    } else if constexpr (Skips<D>) {
      if (size_) {
        const int64_t left = std::clamp<int64_t>(*size_ - position_, 0, n);
        dataset_->skip(left);
        position_ += left;
        at_end_ = left < n;
        return left;
      }
    }
    while (position_ < before + n && !at_end_) read(std::min(part_, before + n - position_));
    return position_ - before;
  }

  // Moves to where the loop starts; `position_` may already be past the beginning.
  void go_to_start() {
    const int64_t left = request_.start - position_;
    if (left < 1) return;
    if constexpr (Skips<D> && !SkipsAndCounts<D>) {
      dataset_->skip(left);
      position_ += left;
    } else {
      pass_over(left);
    }
  }

  bool completes_last_round() const {
    return processes_ > 1 && request_.sharding.even_batches && !request_.sharding.drop_last;
  }

  std::shared_ptr<D> dataset_;
  EpochRequest request_;
  int64_t processes_;
  int64_t part_;  // samples in a batch of one process
  std::optional<int64_t> size_;
  int64_t position_ = 0;
  bool at_end_ = false;
  int64_t step_ = 0;
  std::deque<Job> jobs_;

 private:
  template <class Read>
  static int64_t units_in(const Read& read, int64_t asked) {
    if constexpr (is_vector<Read>) {
      return static_cast<int64_t>(read.size());
    } else {
      return read.has_value() ? asked : 0;
    }
  }

  bool started_ = false;
};

// A stream of samples, which are collated into batches here.
template <class D, class Collate, class Batch>
class SampleRounds : public RoundReader<D, Batch> {
 public:
  SampleRounds(std::shared_ptr<D> dataset, const Collate& collate_function,
               const EpochRequest& request)
      : RoundReader<D, Batch>(std::move(dataset), request), collate_(collate_function) {}

 private:
  using Samples = StreamRead<D>;
  using Sample = typename Samples::value_type;
  static constexpr bool can_copy = std::copy_constructible<Sample>;

  int64_t round() const { return this->part_ * this->processes_; }

  void start() override {
    if (this->completes_last_round() && can_copy) {
      head_wanted_ = round() - 1;
      if (this->size_) {
        const int64_t left = std::max<int64_t>(*this->size_ - this->request_.start, 0);
        head_wanted_ = (round() - left % round()) % round();
      }
    }
    keep_head(this->read(std::min(head_wanted_, this->request_.start)));
    this->go_to_start();
  }

  void keep_head(const Samples& samples) {
    if constexpr (can_copy) {
      for (const Sample& sample : samples) {
        if (static_cast<int64_t>(head_.size()) == head_wanted_) return;
        head_.push_back(own_copy_of(sample));
      }
    }
  }

  void read_round() override {
    const int64_t begin = this->position_;
    const int64_t rank = this->request_.sharding.rank;
    const bool whole =
        this->request_.for_all_ranks || static_cast<int64_t>(head_.size()) < head_wanted_;
    int64_t first = 0;  // position of the first sample read, within the round
    Samples samples;
    if (whole) {
      samples = this->read(round());
      keep_head(samples);
    } else {
      first = rank * this->part_;
      if (this->pass_over(first) == first) {
        samples = this->read(this->part_);
        this->pass_over((this->processes_ - 1 - rank) * this->part_);
      }
    }
    const int64_t real = this->position_ - begin;
    if (real == 0 || (real < round() && this->request_.sharding.drop_last)) {
      this->at_end_ = true;
      return;
    }
    if (this->request_.for_all_ranks) {
      for (int64_t other = 0; other < this->processes_; ++other) {
        add_job(other, samples, first, begin, real);
      }
    } else {
      add_job(rank, samples, first, begin, real);
    }
    ++this->step_;
  }

  // The part of one process: samples of the round, then samples from the beginning of the stream.
  void add_job(int64_t rank, Samples& samples, int64_t first, int64_t begin, int64_t real) {
    Samples part;
    std::vector<int64_t> indices;
    const int64_t end =
        this->processes_ == 1 ? std::max(real, this->part_) : (rank + 1) * this->part_;
    for (int64_t i = rank * this->part_; i < std::min(end, real); ++i) {
      part.push_back(std::move(samples[static_cast<std::size_t>(i - first)]));
      indices.push_back(begin + i);
    }
    if (this->completes_last_round()) {
      for (int64_t i = std::max(real, rank * this->part_); i < end; ++i) {
        if constexpr (can_copy) {
          if (head_.empty()) refuse_to_complete_round(true);
          const auto chosen = static_cast<std::size_t>(i - real) % head_.size();
          part.push_back(head_[chosen]);
          indices.push_back(static_cast<int64_t>(chosen));
        } else {
          refuse_to_complete_round(false);
        }
      }
    }
    if (part.empty()) return;
    this->jobs_.push_back([this, rank, real, step = this->step_, indices = std::move(indices),
                           shared = std::make_shared<Samples>(std::move(part))]() -> Loaded<Batch> {
      try {
        return {make_batch(collate_, std::move(*shared), indices), real, real, rank, step};
      } catch (...) {
        rethrow_with_samples(indices);
      }
    });
  }

  const Collate& collate_;
  int64_t head_wanted_ = 0;
  std::vector<Sample> head_;
};

// A stream of ready batches, which are dealt out unchanged. The last round is completed with the
// first batches.
template <class D, class Collate, class Batch>
class BatchRounds : public RoundReader<D, Batch> {
 public:
  BatchRounds(std::shared_ptr<D> dataset, const Collate& collate_function,
              const EpochRequest& request)
      : RoundReader<D, Batch>(std::move(dataset), request), collate_(collate_function) {}

 private:
  using Ready = ReadyBatch<D>;
  static constexpr bool can_copy = std::copy_constructible<Ready>;

  struct Part {
    Ready ready;
    int64_t rank;
    int64_t first;  // its position in the stream
  };

  void start() override {
    if (this->completes_last_round() && can_copy) {
      // A round has at least one batch, so rank r never needs more than the first r batches to
      // complete it.
      head_wanted_ =
          this->request_.for_all_ranks ? this->processes_ - 1 : this->request_.sharding.rank;
    }
    while (static_cast<int64_t>(head_.size()) < head_wanted_ &&
           this->position_ < this->request_.start && !this->at_end_) {
      if (auto ready = read_one()) keep_head(*ready);
    }
    this->go_to_start();
  }

  std::optional<Ready> read_one() {
    auto read = this->read(this->part_);
    if constexpr (is_vector<decltype(read)>) {
      return read.empty() ? std::nullopt : std::optional<Ready>(std::move(read[0]));
    } else {
      return read;
    }
  }

  void keep_head(const Ready& ready) {
    if (static_cast<int64_t>(head_.size()) >= head_wanted_) return;
    if constexpr (can_copy) head_.push_back(own_copy_of(ready));
  }

  void read_round() override {
    const int64_t begin = this->position_;
    std::vector<Part> parts;
    int64_t real = 0;
    int64_t rows = 0;
    for (; real < this->processes_ && !this->at_end_; ++real) {
      const int64_t first = this->position_;
      std::optional<Ready> ready = read_one();
      if (!ready) break;
      keep_head(*ready);
      rows += rows_of(*ready);
      if (is_mine(real)) parts.push_back({std::move(*ready), real, first});
    }
    const bool short_round = real < this->processes_;
    if (real == 0 || (short_round && this->request_.sharding.drop_last)) {
      this->at_end_ = true;
      return;
    }
    if (short_round && this->completes_last_round()) complete(parts, real);
    const int64_t units = this->position_ - begin;
    for (Part& part : parts) add_job(std::move(part), units, rows);
    if (short_round) this->at_end_ = true;
    ++this->step_;
  }

  bool is_mine(int64_t rank) const {
    return this->request_.for_all_ranks || rank == this->request_.sharding.rank;
  }

  void complete(std::vector<Part>& parts, int64_t real) const {
    for (int64_t rank = real; rank < this->processes_; ++rank) {
      if (!is_mine(rank)) continue;
      if constexpr (can_copy) {
        const auto chosen = static_cast<std::size_t>(rank - real) % head_.size();
        parts.push_back({head_[chosen], rank, static_cast<int64_t>(chosen)});
      } else {
        refuse_to_complete_round(false);
      }
    }
  }

  // Samples in a batch before its collate function runs.
  int64_t rows_of(const Ready& ready) const {
    if constexpr (is_vector<Ready> && !std::same_as<Collate, DefaultCollate>) {
      return static_cast<int64_t>(ready.size());  // samples for the collate function
    } else {
      return rows_in(ready, 1);
    }
  }

  template <class Value>
  static int64_t rows_in(const Value& value, int64_t otherwise) {
    std::optional<int64_t> rows;
    visit_tensors(value, [&](const at::Tensor& tensor) {
      if (!rows) rows = rows_of_first_tensor(tensor);
    });
    return rows.value_or(otherwise);
  }

  void add_job(Part part, int64_t units, int64_t rows) {
    this->jobs_.push_back([this, units, rows, step = this->step_,
                           shared = std::make_shared<Part>(std::move(part))]() -> Loaded<Batch> {
      try {
        Loaded<Batch> loaded = [&]() -> Loaded<Batch> {
          if constexpr (std::same_as<Collate, DefaultCollate>) {
            return {std::move(shared->ready)};
          } else {
            return {std::invoke(collate_, std::move(shared->ready))};
          }
        }();
        loaded.units = units;
        // With one process, count the rows of the final batch; those of other processes are not
        // visible.
        loaded.samples = this->processes_ == 1 ? rows_in(loaded.batch, units) : rows;
        loaded.rank = shared->rank;
        loaded.step = step;
        return loaded;
      } catch (...) {
        rethrow_with_sample(shared->first);
      }
    });
  }

  const Collate& collate_;
  int64_t head_wanted_ = 0;
  std::vector<Ready> head_;
};

}  // namespace accelerant::data::detail
