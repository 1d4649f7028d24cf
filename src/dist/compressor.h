// The parts of a comm hook: a Compressor, which starts a BucketReduction for each bucket of each
// step.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>

#include "accelerant/tensor/named_state.h"

namespace accelerant::dist {

// The exchange of one bucket in one step. Every process makes the same calls in the same order:
// start for each bucket during backward, then advance for each, then finish for each.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  // The second exchange, if there is one.
  virtual void advance() {}

  // Waits, and returns the mean: a tensor of the size and type of the bucket's buffer.
  virtual at::Tensor finish() = 0;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // May read and write the bucket's buffer until finish.
  virtual std::unique_ptr<BucketReduction> start(c10d::GradBucket& bucket) = 0;

  // What the next steps of this process depend on; empty if it remembers nothing. Call it between
  // steps.
  virtual NamedState state_dict() const { return {}; }

  // Throws Error, before changing anything, if the values are invalid. Without values, starts
  // afresh.
  virtual void load_state_dict(const NamedState& /*state*/) {}
};

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// Starts summing a tensor over the processes, in place.
c10::intrusive_ptr<c10d::Work> all_reduce_sum(const GroupPtr& group, const at::Tensor& tensor);

// Sums the whole bucket, divided first because 16-bit sums might overflow.
std::unique_ptr<BucketReduction> average(const GroupPtr& group, const at::Tensor& buffer);

}  // namespace accelerant::dist
