#include "dist/power_sgd.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dist/power_iteration.h"
#include "dist/power_memory.h"

namespace accelerant::dist {
namespace {

// The part of a gradient that its approximation left out. Nothing is kept of gradients that
// overflowed: their step is skipped, and non-finite values would return in every later step.
at::Tensor error_of(const at::Tensor& gradients, const at::Tensor& approximation) {
  return gradients.sub(approximation).nan_to_num_(0.0, 0.0, 0.0);
}

// What both compressors share: uncompressed gradients at first, then compressed ones, and the
// memory of buckets.
class PowerSgd : public Compressor {
 public:
  PowerSgd(const PowerSgdOptions& options, GroupPtr group)
      : options_(options), group_(std::move(group)), memory_(options.random_seed) {}

  std::unique_ptr<BucketReduction> start(c10d::GradBucket& bucket) final {
    const bool compresses = memory_.iteration >= options_.start_iteration;
    if (bucket.isLast()) ++memory_.iteration;
    return compresses ? compress(bucket) : average(group_, bucket.getBuffer());
  }

  NamedState state_dict() const final { return state_of(memory_); }

  void load_state_dict(const NamedState& state) final {
    memory_ = state.values->empty() ? PowerSgdMemory(options_.random_seed) : memory_of(state);
  }

 protected:
  virtual std::unique_ptr<BucketReduction> compress(c10d::GradBucket& bucket) = 0;

  BucketMemory& memory_of_bucket(const c10d::GradBucket& bucket, int64_t length) {
    BucketMemory& memory = memory_.buckets[bucket.getIndex()];
    if (!options_.use_error_feedback) return memory;
    const bool has_error = memory.error.defined() && memory.error.numel() == length;
    const at::TensorOptions options = bucket.getBuffer().options();
    // A loaded tensor may be on another device.
    memory.error = has_error ? memory.error.to(options) : at::zeros({length}, options);
    return memory;
  }

  SeedSequence& seeds() { return memory_.seeds; }

  const PowerSgdOptions options_;
  const GroupPtr group_;

 private:
  PowerSgdMemory memory_;
};

// --- Matrix by matrix ----------------------------------------------------------------------------

class MatrixReduction final : public BucketReduction {
 public:
  MatrixReduction(const PowerSgdOptions& options, const GroupPtr& group, c10d::GradBucket& bucket,
                  BucketMemory& memory, SeedSequence& seeds)
      : options_(options),
        group_(group),
        buffer_(bucket.getBuffer()),
        memory_(memory),
        iteration_(options, group) {
    if (options.use_error_feedback) {
      buffer_.add_(memory.error);
      gradients_ = buffer_.clone();
    }
    sort(bucket.getGradients());
    if (!whole_.empty()) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& tensor : whole_) flat.push_back(tensor.view(-1));
      flat_ = at::cat(flat);
      work_ = all_reduce_sum(group, flat_);
    }
    iteration_.start(batches(), memory, seeds);
  }

  void advance() override { iteration_.advance(); }

  at::Tensor finish() override {
    unpack_whole();
    iteration_.finish();
    for (const Stacked& stacked : stacks_) {
      for (size_t i = 0; i < stacked.originals.size(); ++i) {
        stacked.originals[i].copy_(stacked.stack.select(0, static_cast<int64_t>(i)));
      }
    }
    if (options_.use_error_feedback) memory_.error = error_of(gradients_, buffer_);
    return buffer_;
  }

 private:
  struct Stacked {
    at::Tensor stack;
    std::vector<at::Tensor> originals;
  };

  bool is_worth_it(int64_t n, int64_t m) const {
    const int64_t rank = std::min({n, m, options_.matrix_approximation_rank});
    const auto compressed = static_cast<double>((n + m) * rank);
    return compressed * options_.min_compression_rate < static_cast<double>(n * m);
  }

  // By shape, in the order in which shapes first occur, which is the order in which they get random
  // numbers.
  void sort(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const int64_t n = tensor.dim() == 0 ? 1 : tensor.size(0);
      const int64_t m = n == 0 ? 0 : tensor.numel() / n;
      if (!is_worth_it(n, m)) {
        whole_.push_back(tensor);
        continue;
      }
      const at::Tensor matrix = tensor.view({n, m});
      const auto same = std::find_if(by_shape_.begin(), by_shape_.end(), [&](const auto& others) {
        return others.front().sizes() == matrix.sizes();
      });
      if (same == by_shape_.end()) {
        by_shape_.push_back({matrix});
      } else {
        same->push_back(matrix);
      }
    }
  }

  std::vector<at::Tensor> batches() {
    std::vector<at::Tensor> batches;
    for (const auto& matrices : by_shape_) {
      if (options_.batch_tensors_with_same_shape && matrices.size() > 1) {
        stacks_.push_back({.stack = at::stack(matrices), .originals = matrices});
        batches.push_back(stacks_.back().stack);
      } else {
        for (const at::Tensor& matrix : matrices) batches.push_back(matrix.unsqueeze(0));
      }
    }
    return batches;
  }

  void unpack_whole() {
    if (whole_.empty()) return;
    work_->wait();
    flat_.div_(group_->getSize());
    int64_t begin = 0;
    for (const at::Tensor& tensor : whole_) {
      tensor.copy_(flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }

  const PowerSgdOptions& options_;
  GroupPtr group_;
  at::Tensor buffer_;
  at::Tensor gradients_;  // including the previous step's error; kept to compute the next one
  BucketMemory& memory_;

  std::vector<at::Tensor> whole_;  // not worth compressing
  at::Tensor flat_;                // those, in one piece
  WorkPtr work_;
  std::vector<std::vector<at::Tensor>> by_shape_;
  std::vector<Stacked> stacks_;
  PowerIteration iteration_;
};

class MatrixCompressor final : public PowerSgd {
 public:
  using PowerSgd::PowerSgd;

 private:
  std::unique_ptr<BucketReduction> compress(c10d::GradBucket& bucket) override {
    BucketMemory& memory = memory_of_bucket(bucket, bucket.getBuffer().numel());
    return std::make_unique<MatrixReduction>(options_, group_, bucket, memory, seeds());
  }
};

// --- Bucket by bucket ----------------------------------------------------------------------------

int64_t side_of_square(int64_t length) {
  return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
}

class SquareReduction final : public BucketReduction {
 public:
  SquareReduction(const PowerSgdOptions& options, const GroupPtr& group, const at::Tensor& buffer,
                  BucketMemory& memory, SeedSequence& seeds)
      : options_(options), buffer_(buffer), memory_(memory), iteration_(options, group) {
    const int64_t side = side_of_square(buffer.numel());
    square_ = at::zeros({side * side}, buffer.options());
    square_.narrow(0, 0, buffer.numel()).copy_(buffer);
    if (options.use_error_feedback) {
      square_.add_(memory.error);
      gradients_ = square_.clone();
    }
    iteration_.start({square_.view({1, side, side})}, memory, seeds);
  }

  void advance() override { iteration_.advance(); }

  at::Tensor finish() override {
    iteration_.finish();
    if (options_.use_error_feedback) memory_.error = error_of(gradients_, square_);
    return buffer_.copy_(square_.narrow(0, 0, buffer_.numel()));
  }

 private:
  const PowerSgdOptions& options_;
  at::Tensor buffer_;
  at::Tensor square_;     // the buffer, padded with zeros
  at::Tensor gradients_;  // as in MatrixReduction
  BucketMemory& memory_;
  PowerIteration iteration_;
};

class SquareCompressor final : public PowerSgd {
 public:
  using PowerSgd::PowerSgd;

 private:
  std::unique_ptr<BucketReduction> compress(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBuffer();
    const int64_t side = side_of_square(buffer.numel());
    return std::make_unique<SquareReduction>(options_, group_, buffer,
                                             memory_of_bucket(bucket, side * side), seeds());
  }
};

}  // namespace

std::unique_ptr<Compressor> make_power_sgd(const PowerSgdOptions& options, const GroupPtr& group) {
  return std::make_unique<MatrixCompressor>(options, group);
}

std::unique_ptr<Compressor> make_batched_power_sgd(const PowerSgdOptions& options,
                                                   const GroupPtr& group) {
  return std::make_unique<SquareCompressor>(options, group);
}

}  // namespace accelerant::dist
