#include "dist/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "dist/orthogonal.h"

namespace accelerant::dist {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Matrices of one shape, (batch, n, m), and their factors P (batch, n, rank) and Q (batch, m, rank).
struct Factored {
  at::Tensor matrices;
  at::Tensor p;
  at::Tensor q;
};

// What is kept of a bucket from step to step.
struct Memory {
  at::Tensor error;     // what the last approximation left out
  at::Tensor p, q;      // all factors of the bucket, each in one piece to be sent at once
  at::Tensor q_random;  // what q began with
};

// The two exchanges that approximate some matrices by the mean of their approximations.
class PowerIteration {
 public:
  PowerIteration(const PowerSgdOptions& options, GroupPtr group)
      : options_(options), group_(std::move(group)) {}

  // Takes the shapes' factors from the memory, fills Q where it is new, and sends P.
  void start(const std::vector<at::Tensor>& matrices, Memory& memory, SeedSequence& seeds) {
    int64_t p_size = 0;
    int64_t q_size = 0;
    for (const at::Tensor& matrix : matrices) {
      const int64_t rank = rank_of(matrix.size(1), matrix.size(2));
      p_size += matrix.size(0) * matrix.size(1) * rank;
      q_size += matrix.size(0) * matrix.size(2) * rank;
    }
    if (q_size == 0) return;
    const bool is_new = !options_.warm_start || !memory.q.defined() || memory.q.numel() != q_size;
    if (is_new) {
      memory.p = at::empty({p_size}, matrices.front().options());
      memory.q = at::empty({q_size}, matrices.front().options());
    }
    factor(matrices, memory);
    if (is_new) {
      randomize_q(seeds);
      memory.q_random = memory.q.clone();
    } else {
      revive_q(memory.q_random);
    }
    for (const Factored& part : parts_) {
      orthogonalize_(part.q, options_.orthogonalization_epsilon);
      at::Tensor p = part.p;
      at::bmm_out(p, part.matrices, part.q);
    }
    p_ = memory.p;
    q_ = memory.q;
    work_ = all_reduce_sum(group_, p_);
  }

  // Waits for P and sends Q.
  void advance() {
    if (parts_.empty()) return;
    work_->wait();
    for (const Factored& part : parts_) {
      // Orthonormal columns make it no matter that P is a sum and not a mean.
      orthogonalize_(part.p, options_.orthogonalization_epsilon);
      at::Tensor q = part.q;
      at::bmm_out(q, part.matrices.transpose(1, 2), part.p);
    }
    work_ = all_reduce_sum(group_, q_);
  }

  // Waits for Q and writes the approximation over the matrices.
  void finish() {
    if (parts_.empty()) return;
    work_->wait();
    q_.div_(group_->getSize());
    for (const Factored& part : parts_) {
      at::Tensor matrices = part.matrices;
      at::bmm_out(matrices, part.p, part.q.transpose(1, 2));
    }
  }

 private:
  int64_t rank_of(int64_t n, int64_t m) const {
    return std::min({n, m, options_.matrix_approximation_rank});
  }

  void factor(const std::vector<at::Tensor>& matrices, const Memory& memory) {
    int64_t p_begin = 0;
    int64_t q_begin = 0;
    const auto take = [](const at::Tensor& from, int64_t& begin, at::IntArrayRef shape) {
      const int64_t size = shape[0] * shape[1] * shape[2];
      const at::Tensor part = from.narrow(0, begin, size).view(shape);
      begin += size;
      return part;
    };
    for (const at::Tensor& matrix : matrices) {
      const int64_t batch = matrix.size(0);
      const int64_t n = matrix.size(1);
      const int64_t m = matrix.size(2);
      const int64_t rank = rank_of(n, m);
      parts_.push_back({.matrices = matrix,
                        .p = take(memory.p, p_begin, {batch, n, rank}),
                        .q = take(memory.q, q_begin, {batch, m, rank})});
    }
  }

  // On the CPU, whose numbers are the same on every process.
  void randomize_q(SeedSequence& seeds) {
    const at::Generator generator = at::detail::createCPUGenerator(seeds.next());
    for (const Factored& part : parts_) {
      part.q.copy_(at::randn(part.q.sizes(), generator, part.q.options().device(c10::kCPU)));
    }
  }

  // A Q of zeros, from gradients that were 0 in one step, would stay 0 for ever and the matrix with it; one
  // that is not finite, from gradients that overflowed, would spoil all further steps.
  void revive_q(const at::Tensor& q_random) {
    int64_t begin = 0;
    for (const Factored& part : parts_) {
      const int64_t size = part.q.numel();
      replace_unusable_columns_(part.q, q_random.narrow(0, begin, size).view(part.q.sizes()));
      begin += size;
    }
  }

  const PowerSgdOptions& options_;
  GroupPtr group_;
  std::vector<Factored> parts_;
  at::Tensor p_, q_;
  WorkPtr work_;
};

// The part of a gradient that its approximation has left out. Of gradients that overflowed nothing is kept:
// their step is skipped, and what is not finite would come back in every step after.
at::Tensor error_of(const at::Tensor& gradients, const at::Tensor& approximation) {
  return gradients.sub(approximation).nan_to_num_(0.0, 0.0, 0.0);
}

// What both compressors share: whole gradients at first, then compressed ones, and the memory of buckets.
class PowerSgd : public Compressor {
 public:
  PowerSgd(const PowerSgdOptions& options, GroupPtr group)
      : options_(options), group_(std::move(group)), seeds_(options.random_seed) {}

  std::unique_ptr<BucketReduction> start(c10d::GradBucket& bucket) final {
    const bool compresses = iteration_ >= options_.start_iteration;
    if (bucket.isLast()) ++iteration_;
    return compresses ? compress(bucket) : average(group_, bucket.getBuffer());
  }

 protected:
  virtual std::unique_ptr<BucketReduction> compress(c10d::GradBucket& bucket) = 0;

  Memory& memory_of(const c10d::GradBucket& bucket, int64_t length) {
    Memory& memory = memories_[bucket.getIndex()];
    const bool has_error = memory.error.defined() && memory.error.numel() == length;
    if (options_.use_error_feedback && !has_error) {
      memory.error = at::zeros({length}, bucket.getBuffer().options());
    }
    return memory;
  }

  const PowerSgdOptions options_;
  const GroupPtr group_;
  SeedSequence seeds_;

 private:
  int64_t iteration_ = 0;
  std::map<size_t, Memory> memories_;
};

// --- Matrix by matrix -----------------------------------------------------------------------------

class MatrixReduction final : public BucketReduction {
 public:
  MatrixReduction(const PowerSgdOptions& options, const GroupPtr& group, c10d::GradBucket& bucket,
                  Memory& memory, SeedSequence& seeds)
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

  // By shape, in the order in which shapes first occur: the order in which they get random numbers.
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
  at::Tensor gradients_;  // with the error of the step before; kept only for the next one's
  Memory& memory_;

  std::vector<at::Tensor> whole_;  // not worth compressing
  at::Tensor flat_;                // those in one piece
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
    Memory& memory = memory_of(bucket, bucket.getBuffer().numel());
    return std::make_unique<MatrixReduction>(options_, group_, bucket, memory, seeds_);
  }
};

// --- Bucket by bucket -----------------------------------------------------------------------------

int64_t side_of_square(int64_t length) {
  return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
}

class SquareReduction final : public BucketReduction {
 public:
  SquareReduction(const PowerSgdOptions& options, const GroupPtr& group, const at::Tensor& buffer,
                  Memory& memory, SeedSequence& seeds)
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
  at::Tensor square_;     // the buffer, filled up with zeros
  at::Tensor gradients_;  // as in MatrixReduction
  Memory& memory_;
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
                                             memory_of(bucket, side * side), seeds_);
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
