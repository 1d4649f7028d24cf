// One step of power iteration on the matrices of a bucket, over all processes.
#pragma once

#include <vector>

#include "accelerant/dist/data_parallel_options.h"
#include "dist/compressor.h"
#include "dist/power_memory.h"

namespace accelerant::dist {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The two exchanges that approximate matrices by the mean of their approximations. Refers to the
// options.
class PowerIteration {
 public:
  PowerIteration(const PowerSgdOptions& options, GroupPtr group);

  // Takes the factors of the matrices, each (batch, n, m), from the memory, fills Q if it is new,
  // and sends P.
  void start(const std::vector<at::Tensor>& matrices, BucketMemory& memory, SeedSequence& seeds);

  // Waits for P and sends Q.
  void advance();

  // Waits for Q and writes the approximation over the matrices.
  void finish();

 private:
  // Matrices of one shape, (batch, n, m), and their factors P (batch, n, rank) and Q (batch, m,
  // rank).
  struct Factored {
    at::Tensor matrices;
    at::Tensor p;
    at::Tensor q;
  };

  int64_t rank_of(int64_t n, int64_t m) const;
  void factor(const std::vector<at::Tensor>& matrices, const BucketMemory& memory);
  void randomize_q(SeedSequence& seeds);
  void revive_q(const at::Tensor& q_random);

  const PowerSgdOptions& options_;
  GroupPtr group_;
  std::vector<Factored> parts_;
  at::Tensor p_, q_;
  WorkPtr work_;
};

}  // namespace accelerant::dist
