#include "dist/power_iteration.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <utility>

#include "dist/orthogonal.h"

namespace accelerant::dist {

PowerIteration::PowerIteration(const PowerSgdOptions& options, GroupPtr group)
    : options_(options), group_(std::move(group)) {}

void PowerIteration::start(const std::vector<at::Tensor>& matrices, BucketMemory& memory,
                           SeedSequence& seeds) {
  int64_t p_size = 0;
  int64_t q_size = 0;
  for (const at::Tensor& matrix : matrices) {
    const int64_t rank = rank_of(matrix.size(1), matrix.size(2));
    p_size += matrix.size(0) * matrix.size(1) * rank;
    q_size += matrix.size(0) * matrix.size(2) * rank;
  }
  if (q_size == 0) return;
  const at::TensorOptions tensor_options = matrices.front().options();
  const bool is_new = !options_.warm_start || !memory.q.defined() || memory.q.numel() != q_size ||
                      memory.q_random.numel() != q_size;
  if (is_new) {
    memory.q = at::empty({q_size}, tensor_options);
  } else {
    // Loaded tensors may be on another device.
    memory.q = memory.q.to(tensor_options);
    memory.q_random = memory.q_random.to(tensor_options);
  }
  if (is_new || !memory.p.defined()) memory.p = at::empty({p_size}, tensor_options);
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

void PowerIteration::advance() {
  if (parts_.empty()) return;
  work_->wait();
  for (const Factored& part : parts_) {
    // With orthonormal columns it does not matter that P is a sum and not a mean.
    orthogonalize_(part.p, options_.orthogonalization_epsilon);
    at::Tensor q = part.q;
    at::bmm_out(q, part.matrices.transpose(1, 2), part.p);
  }
  work_ = all_reduce_sum(group_, q_);
}

void PowerIteration::finish() {
  if (parts_.empty()) return;
  work_->wait();
  q_.div_(group_->getSize());
  for (const Factored& part : parts_) {
    at::Tensor matrices = part.matrices;
    at::bmm_out(matrices, part.p, part.q.transpose(1, 2));
  }
}

int64_t PowerIteration::rank_of(int64_t n, int64_t m) const {
  return std::min({n, m, options_.matrix_approximation_rank});
}

void PowerIteration::factor(const std::vector<at::Tensor>& matrices, const BucketMemory& memory) {
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
void PowerIteration::randomize_q(SeedSequence& seeds) {
  const at::Generator generator = at::detail::createCPUGenerator(seeds.next());
  for (const Factored& part : parts_) {
    part.q.copy_(at::randn(part.q.sizes(), generator, part.q.options().device(c10::kCPU)));
  }
}

// A Q of zeros, from gradients that were 0 in one step, would stay 0 forever, and the matrix with
// it. A Q that is not finite, from gradients that overflowed, would spoil all further steps.
void PowerIteration::revive_q(const at::Tensor& q_random) {
  int64_t begin = 0;
  for (const Factored& part : parts_) {
    const int64_t size = part.q.numel();
    replace_unusable_columns_(part.q, q_random.narrow(0, begin, size).view(part.q.sizes()));
    begin += size;
  }
}

}  // namespace accelerant::dist
